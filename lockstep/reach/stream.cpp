#include "lockstep/reach/stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep::reach {
namespace {

void make_nonblocking(int descriptor) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

class Stream : public os::Connection {
 public:
  Stream(os::Descriptor in, os::Descriptor out, std::string peer)
      : in_(std::move(in)), out_(std::move(out)), peer_(std::move(peer)) {
    make_nonblocking(in_.get());
    make_nonblocking(output());
  }

  Result<size_t> read_some(std::span<std::byte> buffer, os::Deadline deadline)
      override {
    while (true) {
      if (!in_) {
        return size_t{0};
      }
      const ssize_t count = ::read(in_.get(), buffer.data(), buffer.size());
      if (count >= 0) {
        return static_cast<size_t>(count);
      }
      if (errno == ECONNRESET || errno == EIO) {
        return size_t{0};
      }
      LOCKSTEP_TRY(after_failure(in_.get(), POLLIN, deadline, "reading from"));
    }
  }

  Result<void> write_all(std::span<const std::byte> data, os::Deadline deadline)
      override {
    while (!data.empty()) {
      const ssize_t count = put(data);
      if (count >= 0) {
        data = data.subspan(static_cast<size_t>(count));
        continue;
      }
      LOCKSTEP_TRY(after_failure(output(), POLLOUT, deadline, "writing to"));
    }
    return {};
  }

  void close() override {
    in_.reset();
    out_.reset();
  }
  std::string peer() const override { return peer_; }
  int descriptor() const override { return in_.get(); }

 private:
  int output() const { return out_ ? out_.get() : in_.get(); }

  ssize_t put(std::span<const std::byte> data) {
    if (is_socket_) {
      const ssize_t count =
          ::send(output(), data.data(), data.size(), MSG_NOSIGNAL);
      if (count >= 0 || errno != ENOTSOCK) {
        return count;
      }
      is_socket_ = false;
    }
    return ::write(output(), data.data(), data.size());
  }

  Result<void> after_failure(
      int descriptor,
      short events,
      os::Deadline deadline,
      const char* what) {
    if (errno == EINTR) {
      return {};
    }
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      if (errno == EPIPE || errno == EBADF || errno == ECONNRESET) {
        return Error(
                   ErrorCode::kUnavailable,
                   fmt::format("{} is no longer there", peer_))
            .with_retry();
      }
      return os_error(fmt::format("{} {}", what, peer_), errno);
    }
    if (deadline.passed()) {
      return Error(
                 ErrorCode::kTimeout,
                 fmt::format("{} {} took too long", what, peer_))
          .with_retry();
    }
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline.left());
    pollfd entry{.fd = descriptor, .events = events, .revents = 0};
    ::poll(&entry, 1, static_cast<int>(left.count()));
    return {};
  }

  os::Descriptor in_;
  os::Descriptor out_;  // empty: in_ serves both ways
  std::string peer_;
  bool is_socket_ = true;
};

}  // namespace

std::unique_ptr<os::Connection>
make_stream(os::Descriptor in, os::Descriptor out, std::string peer) {
  return std::make_unique<Stream>(
      std::move(in), std::move(out), std::move(peer));
}

std::unique_ptr<os::Connection> make_stream(
    os::Descriptor both,
    std::string peer) {
  return make_stream(std::move(both), os::Descriptor(), std::move(peer));
}

}  // namespace lockstep::reach
