#include "lockstep/launch/log_sender.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>

namespace lockstep::launch {
namespace {

constexpr size_t kPiece = size_t{64} << 10;
constexpr size_t kMostQueued = size_t{256} << 10;

}  // namespace

void LogSender::begin(const StartRequest& request) {
  logs_.clear();
  generation_ = request.generation;
  for (const RankCommand& command : request.commands) {
    Log& log = logs_[command.rank];
    log.path = command.log;
    const auto size = os::real_files().size(command.log);
    log.start = size ? size->count : 0;
  }
}

void LogSender::finish(wire::Channel* channel) {
  for (auto& [rank, log] : logs_) {
    const auto size = os::real_files().size(log.path);
    log.size = size && size->count > log.start ? size->count - log.start : 0;
  }
  if (channel != nullptr) {
    announce(*channel);
  }
}

void LogSender::announce(wire::Channel& channel) const {
  for (const auto& [rank, log] : logs_) {
    if (log.size) {
      (void)channel.send(encode(LogRest{generation_, rank, *log.size}))
          .has_value();
    }
  }
}

void LogSender::resume(
    wire::Channel& channel,
    const std::map<int, uint64_t>& came) {
  for (auto& [rank, log] : logs_) {
    const auto found = came.find(rank);
    log.sent = found == came.end() ? 0 : found->second;
  }
  announce(channel);
}

bool LogSender::send(wire::Channel& channel) {
  bool more = true;
  while (more && channel.queued() < kMostQueued) {
    more = false;
    for (auto& [rank, log] : logs_) {
      if (channel.queued() >= kMostQueued) {
        return true;
      }
      if (log.size && log.sent >= *log.size) {
        continue;
      }
      if (!log.file) {
        log.file =
            os::Descriptor(::open(log.path.c_str(), O_RDONLY | O_CLOEXEC));
      }
      block_.resize(kPiece);
      const ssize_t count = log.file
                                ? ::pread(
                                      log.file.get(),
                                      block_.data(),
                                      block_.size(),
                                      static_cast<off_t>(log.start + log.sent))
                                : 0;
      if (count <= 0) {
        continue;
      }
      const LogBytes bytes{
          generation_,
          rank,
          log.sent,
          block_.substr(0, static_cast<size_t>(count))};
      if (!channel.send(encode(bytes))) {
        return false;
      }
      log.sent += static_cast<uint64_t>(count);
      more |= static_cast<size_t>(count) == kPiece;
    }
  }
  return more;
}

bool LogSender::done() const {
  return std::ranges::all_of(logs_, [](const auto& entry) {
    return entry.second.size && entry.second.sent >= *entry.second.size;
  });
}

}  // namespace lockstep::launch
