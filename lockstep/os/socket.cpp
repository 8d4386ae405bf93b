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

#include "lockstep/os/real_connection.h"

namespace lockstep::os {
namespace {

constexpr int kBacklog = 1024;

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
        return make_connection(std::move(accepted), peer);
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
        return make_connection(std::move(descriptor), address.to_string());
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
    return make_connection(std::move(descriptor), address.to_string());
  }
};

}  // namespace

Network& real_network() {
  static RealNetwork network;
  return network;
}

}  // namespace lockstep::os
