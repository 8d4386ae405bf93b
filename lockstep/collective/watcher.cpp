#include "lockstep/collective/watcher.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <charconv>

#include "lockstep/wire/frame.h"

namespace lockstep::collective {
namespace {

constexpr char kFarewell = 'F';
constexpr char kAbort = 'A';
constexpr size_t kMaxMessage = 64 << 10;
// A control message is a few bytes on an idle connection.
constexpr Duration kPatience = std::chrono::milliseconds(200);

std::string encode(const Failure& failure) {
  return fmt::format(
      "{}{}\n{}", kAbort, fmt::join(failure.ranks, " "), failure.reason);
}

Failure decode(const std::string& message) {
  Failure failure;
  const size_t end = std::min(message.find('\n'), message.size());
  const char* at = message.data() + 1;
  const char* stop = message.data() + end;
  while (at < stop) {
    int rank = 0;
    const auto [next, code] = std::from_chars(at, stop, rank);
    if (code != std::errc{}) {
      break;
    }
    failure.ranks.push_back(rank);
    at = next + 1;
  }
  failure.reason = end < message.size() ? message.substr(end + 1) : message;
  return failure;
}

}  // namespace

Watcher::Watcher(Handlers handlers)
    : handlers_(std::move(handlers)), stop_(eventfd(0, EFD_CLOEXEC)) {}

Watcher::~Watcher() {
  stop();
}

void Watcher::stop() {
  if (std::exchange(stopped_, true)) {
    return;
  }
  send(std::string(1, kFarewell));
  if (thread_.joinable()) {
    eventfd_write(stop_.get(), 1);
    thread_.join();
  }
}

void Watcher::add(int rank, std::unique_ptr<os::Connection> connection) {
  peers_.push_back({rank, std::move(connection)});
}

void Watcher::start() {
  thread_ = std::thread([this] { watch(); });
}

void Watcher::send(const std::string& message) {
  const std::lock_guard lock(sending_);
  for (Peer& peer : peers_) {
    // A peer that cannot be told is found gone by its own stream.
    static_cast<void>(wire::write_frame(
        *peer.connection, message, os::Deadline::after(kPatience)));
  }
}

void Watcher::send_abort(const Failure& failure) {
  send(encode(failure));
}

void Watcher::watch() {
  for (;;) {
    std::vector<pollfd> set;
    std::vector<Peer*> watched;
    set.push_back({stop_.get(), POLLIN, 0});
    for (Peer& peer : peers_) {
      if (peer.open) {
        set.push_back({peer.connection->descriptor(), POLLIN, 0});
        watched.push_back(&peer);
      }
    }
    if (poll(set.data(), set.size(), -1) < 0) {
      continue;
    }
    if (set[0].revents != 0) {
      return;
    }
    for (size_t i = 1; i < set.size(); ++i) {
      if (set[i].revents != 0) {
        look(*watched[i - 1]);
      }
    }
  }
}

void Watcher::look(Peer& peer) {
  auto message = wire::read_frame(
      *peer.connection, os::Deadline::after(kPatience), kMaxMessage);
  if (!message || message->empty()) {
    peer.open = false;
    handlers_.gone(peer.rank);
  } else if (message->front() == kFarewell) {
    peer.open = false;
    handlers_.left(peer.rank);
  } else if (message->front() == kAbort) {
    handlers_.abort(decode(*message));
  }
}

}  // namespace lockstep::collective
