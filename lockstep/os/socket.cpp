#include "lockstep/os/socket.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "lockstep/os/descriptor.h"

namespace lockstep::os {
namespace {

constexpr int kBacklog = 1024;

// True when the descriptor is ready; false when the deadline passed.
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

std::string describe(const sockaddr_storage& storage, socklen_t length) {
  char host[NI_MAXHOST] = "?";
  char port[NI_MAXSERV] = "?";
  ::getnameinfo(
      reinterpret_cast<const sockaddr*>(&storage),
      length,
      host,
      sizeof(host),
      port,
      sizeof(port),
      NI_NUMERICHOST | NI_NUMERICSERV);
  return fmt::format("{}:{}", host, port);
}

void set_option(int descriptor, int level, int name) {
  int on = 1;
  ::setsockopt(descriptor, level, name, &on, sizeof(on));
}

class RealListener : public Listener {
 public:
  RealListener(Descriptor descriptor, Address address)
      : descriptor_(std::move(descriptor)), address_(std::move(address)) {}
  ~RealListener() override { close(); }

  Result<std::unique_ptr<Connection>> accept(Deadline deadline) override {
    while (true) {
      if (closed_) {
        return Error(
            ErrorCode::kAborted,
            fmt::format("{} was closed", address_.to_string()));
      }
      sockaddr_storage storage{};
      socklen_t length = sizeof(storage);
      Descriptor accepted(
          ::accept4(
              descriptor_.get(),
              reinterpret_cast<sockaddr*>(&storage),
              &length,
              SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (accepted) {
        std::string peer = address_.to_string();
        if (address_.unix_path.empty()) {
          set_option(accepted.get(), IPPROTO_TCP, TCP_NODELAY);
          peer = describe(storage, length);
        }
        return std::make_unique<RealConnection>(std::move(accepted), peer);
      }
      if (closed_ || errno == EINTR || errno == ECONNABORTED) {
        continue;
      }
      if (errno != EAGAIN) {
        return os_error(
            fmt::format("cannot accept on {}", address_.to_string()), errno);
      }
      if (!wait_ready(descriptor_.get(), POLLIN, deadline)) {
        return std::move(
                   Error(
                       ErrorCode::kTimeout,
                       fmt::format(
                           "nobody connected to {}", address_.to_string())))
            .with_retry();
      }
    }
  }

  Address address() const override { return address_; }

  // shutdown() wakes a thread inside accept() and frees the port.
  void close() override {
    if (closed_.exchange(true)) {
      return;
    }
    if (!address_.unix_path.empty() && address_.unix_path[0] != '@') {
      ::unlink(address_.unix_path.c_str());
    }
    ::shutdown(descriptor_.get(), SHUT_RDWR);
  }

 private:
  Descriptor descriptor_;
  Address address_;
  std::atomic<bool> closed_{false};
};

Result<std::pair<sockaddr_un, socklen_t>> unix_address(const Address& address) {
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  const std::string& path = address.unix_path;
  if (path.size() >= sizeof(name.sun_path)) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "socket path '{}' is longer than {} bytes",
            path,
            sizeof(name.sun_path) - 1));
  }
  std::memcpy(name.sun_path, path.data(), path.size());
  size_t length = offsetof(sockaddr_un, sun_path) + path.size();
  if (path[0] == '@') {
    name.sun_path[0] = '\0';  // abstract: no final zero, no file
  } else {
    ++length;
  }
  return std::pair(name, static_cast<socklen_t>(length));
}

// Numeric and named hosts; the list is freed by its owner.
using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Result<AddressList> resolve(const Address& address, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | (passive ? AI_PASSIVE : 0);
  addrinfo* found = nullptr;
  int code = ::getaddrinfo(
      address.host.empty() ? nullptr : address.host.c_str(),
      std::to_string(address.port).c_str(),
      &hints,
      &found);
  if (code != 0) {
    Error error(
        ErrorCode::kUnavailable,
        fmt::format(
            "cannot resolve host '{}': {}",
            address.host,
            ::gai_strerror(code)));
    if (code == EAI_AGAIN) {
      return std::move(error).with_retry();
    }
    return error;
  }
  return AddressList(found, &::freeaddrinfo);
}

// Loopback can connect a socket to itself when nobody listens on a port of
// the ephemeral range: a client that retries would talk to its own echo.
bool is_self(int descriptor) {
  sockaddr_storage ours{};
  sockaddr_storage theirs{};
  socklen_t our_length = sizeof(ours);
  socklen_t their_length = sizeof(theirs);
  return ::getsockname(
             descriptor, reinterpret_cast<sockaddr*>(&ours), &our_length) ==
             0 &&
         ::getpeername(
             descriptor, reinterpret_cast<sockaddr*>(&theirs), &their_length) ==
             0 &&
         our_length == their_length &&
         std::memcmp(&ours, &theirs, our_length) == 0;
}

class RealNetwork : public Network {
 public:
  Result<std::unique_ptr<Listener>> listen(const Address& address) override {
    if (!address.unix_path.empty()) {
      return listen_unix(address);
    }
    LOCKSTEP_ASSIGN(AddressList found, resolve(address, true));
    int error = EADDRNOTAVAIL;
    for (addrinfo* entry = found.get(); entry != nullptr;
         entry = entry->ai_next) {
      Descriptor descriptor(
          ::socket(
              entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!descriptor) {
        error = errno;
        continue;
      }
      set_option(descriptor.get(), SOL_SOCKET, SO_REUSEADDR);
      if (::bind(descriptor.get(), entry->ai_addr, entry->ai_addrlen) != 0 ||
          ::listen(descriptor.get(), kBacklog) != 0) {
        error = errno;
        continue;
      }
      sockaddr_storage bound{};
      socklen_t length = sizeof(bound);
      ::getsockname(
          descriptor.get(), reinterpret_cast<sockaddr*>(&bound), &length);
      Address chosen = address;
      chosen.port = ntohs(
          bound.ss_family == AF_INET6
              ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
              : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
      return std::make_unique<RealListener>(std::move(descriptor), chosen);
    }
    return os_error(
        fmt::format("cannot listen on {}", address.to_string()), error);
  }

  Result<std::unique_ptr<Connection>> connect(
      const Address& address,
      Deadline deadline) override {
    if (!address.unix_path.empty()) {
      return connect_unix(address, deadline);
    }
    LOCKSTEP_ASSIGN(AddressList found, resolve(address, false));
    int error = EADDRNOTAVAIL;
    for (addrinfo* entry = found.get(); entry != nullptr;
         entry = entry->ai_next) {
      Descriptor descriptor(
          ::socket(
              entry->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!descriptor) {
        error = errno;
        continue;
      }
      error = connect_one(descriptor.get(), *entry, deadline);
      if (error == 0) {
        set_option(descriptor.get(), IPPROTO_TCP, TCP_NODELAY);
        return std::make_unique<RealConnection>(
            std::move(descriptor), address.to_string());
      }
    }
    return os_error(
        fmt::format("cannot connect to {}", address.to_string()), error);
  }

 private:
  static int connect_one(int descriptor, addrinfo& entry, Deadline deadline) {
    if (::connect(descriptor, entry.ai_addr, entry.ai_addrlen) != 0) {
      if (errno != EINPROGRESS && errno != EINTR) {
        return errno;
      }
      if (!wait_ready(descriptor, POLLOUT, deadline)) {
        return ETIMEDOUT;
      }
      int error = 0;
      socklen_t length = sizeof(error);
      ::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &length);
      if (error != 0) {
        return error;
      }
    }
    return is_self(descriptor) ? ECONNREFUSED : 0;
  }

  static Result<std::unique_ptr<Listener>> listen_unix(const Address& address) {
    LOCKSTEP_ASSIGN(auto name, unix_address(address));
    Descriptor descriptor(
        ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    auto bind = [&] {
      return ::bind(
                 descriptor.get(),
                 reinterpret_cast<sockaddr*>(&name.first),
                 name.second) == 0;
    };
    bool bound = bind();
    if (!bound && errno == EADDRINUSE && address.unix_path[0] != '@') {
      // A file left by a process that was killed: nobody answers there.
      Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      bool stale = ::connect(
                       probe.get(),
                       reinterpret_cast<sockaddr*>(&name.first),
                       name.second) != 0 &&
                   errno == ECONNREFUSED;
      if (stale) {
        ::unlink(address.unix_path.c_str());
        bound = bind();
      } else {
        errno = EADDRINUSE;
      }
    }
    if (!bound || ::listen(descriptor.get(), kBacklog) != 0) {
      return os_error(
          fmt::format("cannot listen on {}", address.to_string()), errno);
    }
    return std::make_unique<RealListener>(std::move(descriptor), address);
  }

  static Result<std::unique_ptr<Connection>> connect_unix(
      const Address& address,
      Deadline deadline) {
    LOCKSTEP_ASSIGN(auto name, unix_address(address));
    Descriptor descriptor(
        ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    while (::connect(
               descriptor.get(),
               reinterpret_cast<sockaddr*>(&name.first),
               name.second) != 0) {
      // EAGAIN: the listener's queue is full, and poll cannot wait for that.
      if ((errno != EAGAIN && errno != EINTR) || deadline.passed()) {
        return os_error(
            fmt::format("cannot connect to {}", address.to_string()),
            errno == EAGAIN ? ETIMEDOUT
                            : (errno == ENOENT ? ECONNREFUSED : errno));
      }
      std::this_thread::sleep_for(
          std::min<Duration>(deadline.left(), std::chrono::milliseconds(2)));
    }
    return std::make_unique<RealConnection>(
        std::move(descriptor), address.to_string());
  }
};

constexpr Duration kDescriptorTimeout = std::chrono::seconds(30);

Result<int> socket_of(const Connection& connection) {
  if (connection.descriptor() < 0) {
    return Error(
        ErrorCode::kInvalidInput,
        "descriptors travel only over a real Unix socket");
  }
  return connection.descriptor();
}

}  // namespace

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

Network& real_network() {
  static RealNetwork network;
  return network;
}

Result<void> send_descriptor(Connection& connection, int descriptor) {
  LOCKSTEP_ASSIGN(int socket, socket_of(connection));
  char payload = 'd';
  iovec part{.iov_base = &payload, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  Deadline deadline = Deadline::after(kDescriptorTimeout);
  while (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN) {
      return os_error(
          fmt::format("sending a descriptor to {}", connection.peer()), errno);
    }
    if (!wait_ready(socket, POLLOUT, deadline)) {
      return os_error(
          fmt::format("sending a descriptor to {}", connection.peer()),
          ETIMEDOUT);
    }
  }
  return {};
}

Result<int> receive_descriptor(Connection& connection, Deadline deadline) {
  LOCKSTEP_ASSIGN(int socket, socket_of(connection));
  std::string what =
      fmt::format("receiving a descriptor from {}", connection.peer());
  char payload = 0;
  iovec part{.iov_base = &payload, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t count = 0;
  while ((count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0) {
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN) {
      return os_error(what, errno);
    }
    if (!wait_ready(socket, POLLIN, deadline)) {
      return os_error(what, ETIMEDOUT);
    }
  }
  if (count == 0) {
    return Error(ErrorCode::kUnavailable, what + ": the connection is closed");
  }
  // The padding of the buffer has room for a second one: take it too, so
  // that it can be closed.
  std::vector<Descriptor> received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    size_t bytes = header->cmsg_len - CMSG_LEN(0);
    for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
      int value = -1;
      std::memcpy(&value, CMSG_DATA(header) + at, sizeof(int));
      received.emplace_back(value);
    }
  }
  if (received.size() != 1 || payload != 'd') {
    return Error(ErrorCode::kCorrupt, what + ": the message has none");
  }
  return received[0].release();
}

}  // namespace lockstep::os
