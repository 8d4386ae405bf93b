#include "lockstep/launch/connections.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>

#include "lockstep/launch/agent_protocol.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

constexpr Duration kGreetingTime = std::chrono::seconds(2);
constexpr size_t kMaxStrangers = 256;
constexpr int kBacklog = 1024;
constexpr int kMostNews = 512;  // connections served in one turn
constexpr Duration kLook = milliseconds(100);

// A thousand agents need more descriptors than a shell gives.
void raise_descriptor_limit() {
  rlimit limit{};
  constexpr rlim_t kWanted = 65536;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kWanted) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kWanted);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Result<os::Descriptor> listen_on(const ListenOptions& options, int& port) {
  sockaddr_in place{};
  place.sin_family = AF_INET;
  if (::inet_pton(AF_INET, options.address.c_str(), &place.sin_addr) != 1) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("'{}' is not an IPv4 address", options.address));
  }
  auto* generic = reinterpret_cast<sockaddr*>(&place);
  for (int at = options.first_port; at <= options.last_port; ++at) {
    os::Descriptor socket(
        ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) {
      return os_error("cannot make a socket for the agents", errno);
    }
    const int on = 1;
    ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    place.sin_port = htons(static_cast<uint16_t>(at));
    socklen_t size = sizeof place;
    if (::bind(socket.get(), generic, size) == 0 &&
        ::listen(socket.get(), kBacklog) == 0 &&
        ::getsockname(socket.get(), generic, &size) == 0) {
      port = ntohs(place.sin_port);
      return socket;
    }
    if (errno != EADDRINUSE && errno != EACCES) {
      return os_error(
          fmt::format("cannot listen on {}:{}", options.address, at), errno);
    }
  }
  return Error(
             ErrorCode::kUnavailable,
             fmt::format(
                 "no port of {}-{} is free on {}",
                 options.first_port,
                 options.last_port,
                 options.address))
      .with_fix("give another range, or end what listens there");
}

}  // namespace

Result<std::unique_ptr<Connections>> Connections::open(
    const ListenOptions& options,
    const Key& key,
    const os::Clock& clock,
    ConnectionUser user) {
  raise_descriptor_limit();
  int port = 0;
  LOCKSTEP_ASSIGN(os::Descriptor listener, listen_on(options, port));
  return std::unique_ptr<Connections>(
      new Connections(key, clock, std::move(user), std::move(listener), port));
}

Connections::Connections(
    const Key& key,
    const os::Clock& clock,
    ConnectionUser user,
    os::Descriptor listener,
    int port)
    : key_(key),
      clock_(clock),
      user_(std::move(user)),
      listener_(std::move(listener)),
      port_(port),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      refusals_(clock) {
  watch_listener(true);
}

void Connections::watch_listener(bool on) {
  epoll_event event{};
  event.events = on ? uint32_t{EPOLLIN} : 0;
  event.data.u64 = 0;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event) != 0) {
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event);
  }
  accepting_ = on;
}

void Connections::serve(Duration wait) {
  epoll_event news[kMostNews];
  const auto whole = std::chrono::ceil<milliseconds>(wait);
  const int count = ::epoll_wait(
      epoll_.get(), news, kMostNews, static_cast<int>(whole.count()));
  for (int i = 0; i < count; ++i) {
    if (news[i].data.u64 == 0) {
      accept_all();
    } else {
      pump(news[i].data.u64);
    }
  }
  look_at_strangers();
}

void Connections::look_at_strangers() {
  const os::Instant now = clock_.now();
  if (accepting_ && looked_ && now - *looked_ < kLook) {
    return;
  }
  looked_ = now;
  if (!accepting_) {
    watch_listener(true);
  }
  while (!strangers_.empty() &&
         now - peers_.at(*strangers_.begin()).since > kGreetingTime) {
    refuse(
        *strangers_.begin(),
        fmt::format(
            "did not finish the hand-shake in {}",
            format_duration(kGreetingTime)));
  }
  refusals_.look();
}

void Connections::accept_all() {
  for (int i = 0; i < kMostNews; ++i) {
    os::Descriptor socket(
        ::accept4(
            listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket) {
      add(std::move(socket));
      continue;
    }
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM &&
        errno != ENOBUFS) {
      return;
    }
    if (strangers_.empty()) {
      watch_listener(false);  // until the next look
      return;
    }
    refuse(*strangers_.begin(), "gave way to a newer one");
  }
}

void Connections::add(os::Descriptor socket) {
  const uint64_t id = ++last_;
  Peer peer;
  peer.channel = wire::Channel::make(
      std::move(socket),
      wire::ChannelRole::kServer,
      key_,
      std::string(kAgentPurpose));
  peer.since = clock_.now();
  peer.address = peer.channel->peer();
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, peer.channel->descriptor(), &event);
  peers_.emplace(id, std::move(peer));
  strangers_.insert(id);
  if (strangers_.size() > kMaxStrangers) {
    refuse(*strangers_.begin(), "gave way to a newer one");
  }
}

void Connections::pump(uint64_t id) {
  const auto found = peers_.find(id);
  if (found == peers_.end()) {
    return;  // went in this turn
  }
  std::vector<std::string> messages;
  const Result<void> result = found->second.channel->pump(messages);
  for (const std::string& message : messages) {
    user_.take(id, message);
    if (!has(id)) {
      return;
    }
  }
  if (result) {
    watch_writing(id, peers_.at(id));
  } else if (strangers_.contains(id)) {
    refuse(id, result.error().message());
  } else {
    close(id);
    user_.ended(id, result.error().message());
  }
}

void Connections::watch_writing(uint64_t id, Peer& peer) {
  const bool wanted = peer.channel->wants_to_write();
  if (wanted == peer.writing) {
    return;
  }
  peer.writing = wanted;
  epoll_event event{};
  event.events = EPOLLIN | (wanted ? uint32_t{EPOLLOUT} : 0);
  event.data.u64 = id;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, peer.channel->descriptor(), &event);
}

const std::string& Connections::address(uint64_t id) const {
  return peers_.at(id).address;
}

size_t Connections::queued(uint64_t id) const {
  return peers_.at(id).channel->queued();
}

Result<void> Connections::send(uint64_t id, const std::string& bytes) {
  Peer& peer = peers_.at(id);
  const Result<void> sent = peer.channel->send(bytes);
  if (!sent && sent.error().code() == ErrorCode::kInvalidInput) {
    return sent;
  }
  watch_writing(id, peer);
  return {};
}

void Connections::admit(uint64_t id) {
  strangers_.erase(id);
}

void Connections::close(uint64_t id) {
  peers_.erase(id);
  strangers_.erase(id);
}

void Connections::refuse(uint64_t id, const std::string& why) {
  const std::string address = peers_.at(id).address;
  close(id);
  refusals_.take(address, why);
}

}  // namespace lockstep::launch
