#include "lockstep/launch/dialer.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/launch/agent_protocol.h"
#include "lockstep/os/socket.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLead = milliseconds(150);
constexpr Duration kRound = seconds(3);         // for all addresses
constexpr Duration kPause = milliseconds(300);  // between rounds

// A socket that connects, or the reason why not. Addresses are numbers as a
// rule: a name is looked up, which takes time and memory.
Result<os::Descriptor> begin_connect(const std::string& text) {
  LOCKSTEP_ASSIGN(const os::Address address, os::parse_address(text));
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_NUMERICHOST;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(address.port);
  int failed =
      ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  if (failed == EAI_NONAME) {
    hints.ai_flags = AI_NUMERICSERV;
    failed = ::getaddrinfo(address.host.c_str(), port.c_str(), &hints, &found);
  }
  if (failed != 0) {
    return Error(
        ErrorCode::kUnavailable,
        fmt::format("{}: {}", text, ::gai_strerror(failed)));
  }
  os::Descriptor socket(
      ::socket(
          found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int result = ::connect(socket.get(), found->ai_addr, found->ai_addrlen);
  const int number = errno;
  ::freeaddrinfo(found);
  if (result != 0 && number != EINPROGRESS) {
    return os_error(fmt::format("cannot reach {}", text), number);
  }
  return socket;
}

}  // namespace

void Dialer::watch(std::vector<pollfd>& sources) const {
  for (const Try& one : tries_) {
    const bool writing = one.channel->wants_to_write();
    sources.push_back(
        {one.channel->descriptor(),
         static_cast<short>(POLLIN | (writing ? POLLOUT : 0)),
         0});
  }
}

Duration Dialer::wait() const {
  const os::Instant now = os::real_clock().now();
  const os::Instant until = next_ < addresses_.size() ? next_dial_ : round_end_;
  return std::max(Duration(0), Duration(until - now));
}

Duration Dialer::refused() const {
  return refused_since_ ? os::real_clock().now() - *refused_since_
                        : Duration(0);
}

void Dialer::note_trouble(const std::string& address, const std::string& what) {
  trouble_ = what;
  if (what.find(::strerror(ECONNREFUSED)) != std::string::npos &&
      !address.starts_with("127.") && !refused_since_) {
    refused_since_ = os::real_clock().now();
  }
}

void Dialer::dial(const std::string& address) {
  Result<os::Descriptor> socket = begin_connect(address);
  if (!socket) {
    note_trouble(address, socket.error().message());
    return;
  }
  tries_.push_back(
      {wire::Channel::make(
           std::move(*socket),
           wire::ChannelRole::kClient,
           key_,
           std::string(kAgentPurpose)),
       address});
}

std::optional<Dialer::Found> Dialer::advance() {
  const os::Instant now = os::real_clock().now();
  std::vector<std::string> messages;
  for (size_t i = 0; i < tries_.size();) {
    if (const auto result = tries_[i].channel->pump(messages); !result) {
      note_trouble(
          tries_[i].address,
          fmt::format("{}: {}", tries_[i].address, result.error().message()));
      tries_.erase(tries_.begin() + static_cast<ptrdiff_t>(i));
      next_dial_ = now;  // no need to wait for that one
    } else if (tries_[i].channel->ready()) {
      Found found{std::move(tries_[i].channel), tries_[i].address};
      tries_.clear();
      refused_since_.reset();
      next_ = 0;
      next_dial_ = round_end_ = now;
      return found;
    } else {
      ++i;
    }
  }
  if (next_ < addresses_.size()) {
    if (now >= next_dial_) {
      if (next_ == 0) {
        round_end_ = now + kRound;
      }
      dial(addresses_[next_++]);
      next_dial_ = now + kLead;
    }
  } else if (tries_.empty()) {
    round_end_ = std::min(round_end_, now + kPause);
  }
  if (next_ >= addresses_.size() && now >= round_end_) {
    for (const Try& one : tries_) {
      trouble_ = fmt::format(
          "{} does not answer within {}", one.address, format_duration(kRound));
    }
    tries_.clear();
    next_ = 0;
    next_dial_ = now;
  }
  return {};
}

OwnEnd own_end(int descriptor) {
  OwnEnd end;
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  auto* generic = reinterpret_cast<sockaddr*>(&storage);
  char text[INET6_ADDRSTRLEN] = "";
  if (::getsockname(descriptor, generic, &length) != 0) {
    return end;
  }
  const auto number_of = [&text](const sockaddr* address) -> std::string {
    const void* bytes = nullptr;
    if (address->sa_family == AF_INET) {
      bytes = &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
    } else if (address->sa_family == AF_INET6) {
      bytes = &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
    }
    return bytes != nullptr &&
                   ::inet_ntop(address->sa_family, bytes, text, sizeof text) !=
                       nullptr
               ? text
               : "";
  };
  end.address = number_of(generic);
  ifaddrs* all = nullptr;
  if (end.address.empty() || ::getifaddrs(&all) != 0) {
    return end;
  }
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr != nullptr && number_of(one->ifa_addr) == end.address) {
      end.interface = one->ifa_name;
      break;
    }
  }
  ::freeifaddrs(all);
  return end;
}

}  // namespace lockstep::launch
