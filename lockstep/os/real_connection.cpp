#include "lockstep/os/real_connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>

namespace lockstep::os {
namespace {

class RealConnection : public Connection {
 public:
  RealConnection(Descriptor descriptor, std::string peer)
      : descriptor_(std::move(descriptor)), peer_(std::move(peer)) {}

  Result<size_t> read_some(std::span<std::byte> buffer, Deadline deadline)
      override {
    while (true) {
      ssize_t count =
          ::recv(descriptor_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (count > 0) {
        return static_cast<size_t>(count);
      }
      if (closed_) {
        return closed_here();
      }
      if (count == 0) {
        return size_t{0};
      }
      LOCKSTEP_TRY(after_failure(POLLIN, deadline, "reading from"));
    }
  }

  Result<void> write_all(std::span<const std::byte> data, Deadline deadline)
      override {
    while (!data.empty()) {
      ssize_t count = ::send(
          descriptor_.get(),
          data.data(),
          data.size(),
          MSG_DONTWAIT | MSG_NOSIGNAL);
      if (count >= 0) {
        data = data.subspan(static_cast<size_t>(count));
        continue;
      }
      if (closed_) {
        return closed_here();
      }
      LOCKSTEP_TRY(after_failure(POLLOUT, deadline, "writing to"));
    }
    return {};
  }

  // The descriptor itself lives until the destructor: another thread may be
  // inside poll with it.
  void close() override {
    closed_ = true;
    ::shutdown(descriptor_.get(), SHUT_RDWR);
  }
  std::string peer() const override { return peer_; }
  int descriptor() const override { return descriptor_.get(); }

 private:
  Error closed_here() const {
    return Error(
        ErrorCode::kAborted,
        fmt::format("the connection with {} was closed here", peer_));
  }

  Result<void>
  after_failure(short events, Deadline deadline, const char* what) {
    if (errno == EINTR) {
      return {};
    }
    if (errno != EAGAIN) {
      return os_error(fmt::format("{} {}", what, peer_), errno);
    }
    if (!wait_ready(descriptor_.get(), events, deadline)) {
      return std::move(Error(
                           ErrorCode::kTimeout,
                           fmt::format("{} {} took too long", what, peer_)))
          .with_retry();
    }
    return {};
  }

  Descriptor descriptor_;
  std::string peer_;
  std::atomic<bool> closed_{false};
};

}  // namespace

bool wait_ready(int descriptor, short events, Deadline deadline) {
  while (true) {
    Duration left = deadline.left();
    auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    timespec timeout{
        .tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
    pollfd entry{.fd = descriptor, .events = events, .revents = 0};
    // An error other than EINTR is found again by the call that follows.
    int ready = ::ppoll(&entry, 1, &timeout, nullptr);
    if (ready > 0 || (ready < 0 && errno != EINTR)) {
      return true;
    }
    if (deadline.passed()) {
      return false;
    }
  }
}

std::unique_ptr<Connection> make_connection(
    Descriptor descriptor,
    std::string peer) {
  return std::make_unique<RealConnection>(
      std::move(descriptor), std::move(peer));
}

Result<void> Connection::read_all(
    std::span<std::byte> buffer,
    Deadline deadline) {
  while (!buffer.empty()) {
    LOCKSTEP_ASSIGN(size_t count, read_some(buffer, deadline));
    if (count == 0) {
      return std::move(Error(
                           ErrorCode::kUnavailable,
                           fmt::format("{} closed the connection", peer())))
          .with_retry();
    }
    buffer = buffer.subspan(count);
  }
  return {};
}

}  // namespace lockstep::os
