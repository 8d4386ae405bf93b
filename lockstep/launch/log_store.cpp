#include "lockstep/launch/log_store.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/log.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::launch {

os::Path LogStore::path(int rank) const {
  return rank == kSetupRank ? run_.path() / "ranks" / "setup.log"
                            : run_.rank_log(rank);
}

void LogStore::begin(size_t node, int generation, const RankCommand& command) {
  const auto [found, fresh] = logs_.try_emplace(command.rank);
  Log& log = found->second;
  if (fresh) {
    const auto size = os::real_files().size(path(command.rank));
    log.base = size ? size->count : 0;
    if (command.show) {
      log.shown.emplace(path(command.rank), log.base);
    }
  } else {
    log.base += log.came;
  }
  log.node = node;
  log.generation = generation;
  log.came = 0;
  log.size.reset();
  log.closed = false;
}

Result<void> LogStore::take(size_t node, const LogBytes& bytes) {
  const auto found = logs_.find(bytes.rank);
  if (found == logs_.end() || found->second.node != node ||
      found->second.generation != bytes.generation || found->second.closed) {
    return {};
  }
  Log& log = found->second;
  if (bytes.offset > log.came) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format(
            "sent bytes {} of the log of rank {}, byte {} was next",
            bytes.offset,
            bytes.rank,
            log.came));
  }
  // What came before a connection was lost may come again.
  const uint64_t known = log.came - bytes.offset;
  if (known < bytes.data.size()) {
    const std::string_view fresh =
        std::string_view(bytes.data).substr(static_cast<size_t>(known));
    write(bytes.rank, log.base + log.came, fresh);
    log.came += fresh.size();
  }
  return {};
}

// Opened for each piece: a thousand ranks would be a thousand descriptors.
void LogStore::write(int rank, uint64_t offset, std::string_view data) {
  const os::Path file = path(rank);
  const os::Descriptor out(
      ::open(file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  while (out && !data.empty()) {
    const ssize_t count = ::pwrite(
        out.get(), data.data(), data.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      break;
    }
    offset += static_cast<uint64_t>(count);
    data.remove_prefix(static_cast<size_t>(count));
  }
  if ((!out || !data.empty()) && !warned_) {
    warned_ = true;
    log_warning(
        os_error(
            fmt::format("output is lost: cannot write {}", file.string()),
            errno)
            .to_string());
  }
}

void LogStore::take(size_t node, const LogRest& rest) {
  const auto found = logs_.find(rest.rank);
  if (found != logs_.end() && found->second.node == node &&
      found->second.generation == rest.generation) {
    found->second.size = rest.size;
  }
}

void LogStore::close(size_t node) {
  for (auto& [rank, log] : logs_) {
    log.closed |= log.node == node;
  }
}

std::map<int, uint64_t> LogStore::came(size_t node) const {
  std::map<int, uint64_t> result;
  for (const auto& [rank, log] : logs_) {
    if (log.node == node && !log.closed) {
      result[rank] = log.came;
    }
  }
  return result;
}

void LogStore::read(size_t& room, std::vector<RankOutput>& lines) {
  for (auto& [rank, log] : logs_) {
    if (!log.shown) {
      continue;
    }
    const uint64_t before = log.shown->left();
    if (before > 0 && room > 0) {
      for (std::string& line : log.shown->read(room)) {
        lines.push_back({rank, std::move(line)});
      }
      room -= static_cast<size_t>(std::min<uint64_t>(room, before));
    }
    const bool whole = log.closed || (log.size && log.came >= *log.size);
    if (whole && log.shown->left() == 0) {
      for (std::string& line : log.shown->rest()) {
        lines.push_back({rank, std::move(line)});
      }
    }
  }
}

size_t LogStore::left() {
  uint64_t left = 0;
  for (auto& [rank, log] : logs_) {
    if (!log.closed && log.size && *log.size > log.came) {
      left += *log.size - log.came;
    }
    left += log.shown ? log.shown->left() : 0;
  }
  return static_cast<size_t>(left);
}

}  // namespace lockstep::launch
