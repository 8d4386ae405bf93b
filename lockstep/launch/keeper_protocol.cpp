#include "lockstep/launch/keeper_protocol.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace lockstep::launch {
namespace {

using nlohmann::json;

constexpr size_t kLimit = size_t{256} << 20;

}  // namespace

KeeperChannel::~KeeperChannel() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

Result<void> KeeperChannel::send(const json& message) {
  std::string frame(sizeof(uint32_t), '\0');
  json::to_cbor(message, frame);
  const auto size = static_cast<uint32_t>(frame.size() - sizeof(uint32_t));
  std::memcpy(frame.data(), &size, sizeof size);
  size_t done = 0;
  while (done < frame.size()) {
    const ssize_t wrote = ::send(
        descriptor_, frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) {
      continue;
    }
    if (wrote < 0) {
      return os_error("cannot speak to the keeper's socket", errno);
    }
    done += static_cast<size_t>(wrote);
  }
  return {};
}

Result<void> KeeperChannel::receive(std::vector<json>& messages) {
  bool ended = false;
  char block[1 << 16];
  while (true) {
    const ssize_t size = ::recv(descriptor_, block, sizeof block, MSG_DONTWAIT);
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      break;
    }
    if (size <= 0) {
      ended = true;
      break;
    }
    buffer_.append(block, static_cast<size_t>(size));
  }
  size_t at = 0;
  while (buffer_.size() - at >= sizeof(uint32_t)) {
    uint32_t size = 0;
    std::memcpy(&size, buffer_.data() + at, sizeof size);
    if (size > kLimit) {
      return Error(ErrorCode::kCorrupt, "the keeper's socket carries garbage");
    }
    if (buffer_.size() - at - sizeof size < size) {
      break;
    }
    at += sizeof size;
    json message = json::from_cbor(
        buffer_.begin() + static_cast<ptrdiff_t>(at),
        buffer_.begin() + static_cast<ptrdiff_t>(at + size),
        true,
        false);
    at += size;
    if (!message.is_object()) {
      return Error(ErrorCode::kCorrupt, "the keeper's socket carries garbage");
    }
    messages.push_back(std::move(message));
  }
  buffer_.erase(0, at);
  if (ended) {
    return Error(ErrorCode::kUnavailable, "the other end is gone");
  }
  return {};
}

json encode_start(const StartRequest& request) {
  json message = {
      {"type", "start"},
      {"stop_signal", request.stop_signal},
      {"orphan_grace", request.orphan_grace.count()},
      {"commands", json::array()}};
  for (const RankCommand& command : request.commands) {
    message["commands"].push_back(
        {{"rank", command.rank},
         {"argv", command.argv},
         {"environment", command.environment},
         {"directory", command.directory.string()},
         {"log", command.log.string()},
         {"after", command.after}});
  }
  return message;
}

StartRequest decode_start(const json& message) {
  StartRequest request;
  request.stop_signal = message.at("stop_signal").get<int>();
  request.orphan_grace = Duration(message.at("orphan_grace").get<int64_t>());
  for (const json& one : message.at("commands")) {
    RankCommand command;
    command.rank = one.at("rank").get<int>();
    command.argv = one.at("argv").get<std::vector<std::string>>();
    command.environment = one.at("environment").get<Environment>();
    command.directory = one.at("directory").get<std::string>();
    command.log = one.at("log").get<std::string>();
    command.after = one.at("after").get<std::vector<std::string>>();
    request.commands.push_back(std::move(command));
  }
  return request;
}

json encode_end(int signal, Duration grace) {
  return {{"type", "end"}, {"signal", signal}, {"grace", grace.count()}};
}

json encode_renew(Duration left, Duration patience) {
  return {
      {"type", "renew"},
      {"left", left.count()},
      {"patience", patience.count()}};
}

json encode_exit(const RankExited& exit) {
  return {
      {"type", "exited"},
      {"rank", exit.rank},
      {"pid", exit.pid},
      {"keeper", exit.keeper},
      {"batch", exit.batch},
      {"ended", exit.ended.time_since_epoch().count()},
      {"code", exit.status.code},
      {"signal", exit.status.signal},
      {"out_of_memory", exit.out_of_memory},
      {"was_stopped", exit.was_stopped}};
}

RankExited decode_exit(const json& message) {
  RankExited exit;
  exit.rank = message.at("rank").get<int>();
  exit.pid = message.at("pid").get<int>();
  exit.keeper = message.at("keeper").get<int>();
  exit.batch = message.at("batch").get<int>();
  exit.ended = os::Instant(Duration(message.at("ended").get<int64_t>()));
  exit.status.code = message.at("code").get<int>();
  exit.status.signal = message.at("signal").get<int>();
  exit.out_of_memory = message.at("out_of_memory").get<bool>();
  exit.was_stopped = message.at("was_stopped").get<bool>();
  return exit;
}

}  // namespace lockstep::launch
