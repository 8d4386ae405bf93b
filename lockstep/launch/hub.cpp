#include "lockstep/launch/hub.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lockstep/base/log.h"
#include "lockstep/launch/log_store.h"
#include "lockstep/wire/channel.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kGreetingTime = seconds(2);
constexpr size_t kMaxStrangers = 256;
constexpr int kBacklog = 1024;
constexpr int kMostNews = 512;  // connections served in one turn
constexpr Duration kScan = milliseconds(100);
constexpr size_t kMostQueued = size_t{64} << 20;
constexpr double kNotedSkew = 5;  // seconds

// A thousand agents need more descriptors than a shell gives.
void raise_descriptor_limit() {
  rlimit limit{};
  constexpr rlim_t kWanted = 65536;
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kWanted) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, kWanted);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
}

Result<os::Descriptor> listen_on(const HubOptions& options, int& port) {
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

class EpollHub : public Hub {
 public:
  EpollHub(
      const HubOptions& options,
      const Key& key,
      const record::RunDirectory& run,
      const os::Clock& clock,
      os::Descriptor listener,
      int port)
      : options_(options),
        key_(key),
        clock_(clock),
        listener_(std::move(listener)),
        port_(port),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        logs_(run),
        nodes_(options.nodes) {
    for (size_t node = 0; node < nodes_.size(); ++node) {
      nodes_[node].host = node < options.hosts.size()
                              ? options.hosts[node]
                              : fmt::format("node {}", node);
    }
    watch_listener(true);
  }

  int port() const override { return port_; }
  size_t size() const override { return nodes_.size(); }
  const std::string& host(size_t node) const override {
    return nodes_.at(node).host;
  }
  bool is_lost(size_t node) const override { return nodes_.at(node).lost; }
  bool any_away() const override {
    return std::ranges::any_of(
        nodes_, [](const Node& node) { return node.active && node.peer == 0; });
  }
  size_t refused() const override { return refused_; }
  int descriptor() const override { return epoll_.get(); }
  const Join* joined(size_t node) const override {
    return nodes_.at(node).join ? &*nodes_[node].join : nullptr;
  }

  std::vector<size_t> present() const override {
    std::vector<size_t> found;
    for (size_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node].peer != 0 || (nodes_[node].join && !nodes_[node].lost)) {
        found.push_back(node);
      }
    }
    return found;
  }

  void readmit(size_t node) override { nodes_.at(node).lost = false; }

  Result<void> start(size_t node, const StartRequest& request) override {
    Node& one = nodes_.at(node);
    one.generation = request.generation;
    one.active = true;
    if (one.lost || !one.join) {
      lose(node, "it was gone when the ranks should start");
      return {};
    }
    for (const RankCommand& command : request.commands) {
      logs_.begin(node, request.generation, command);
    }
    return tell(node, request);
  }

  void end(int signal, Duration grace) override {
    for (size_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node].active) {
        (void)tell(node, EndRanks{signal, grace}).has_value();
      }
    }
  }

  void inspect(size_t node, int rank) override {
    (void)tell(node, Inspect{rank}).has_value();
  }

  std::vector<NodeReport> receive(bool files, size_t room) override {
    serve(Duration(0));
    std::vector<NodeReport> reports = std::exchange(reports_, {});
    if (files) {
      std::vector<RankOutput> lines;
      logs_.read(room, lines);
      for (RankOutput& line : lines) {
        reports.push_back({logs_.node_of(line.rank), std::move(line)});
      }
    }
    return reports;
  }

  size_t output_left() override { return logs_.left(); }

  Result<void> gather(os::Deadline deadline) override {
    while (true) {
      std::vector<std::string> missing;
      for (const Node& node : nodes_) {
        if (node.peer == 0) {
          missing.push_back(node.host);
        }
      }
      if (missing.empty()) {
        return {};
      }
      if (deadline.passed()) {
        return Error(
                   ErrorCode::kUnavailable,
                   fmt::format(
                       "{} of {} nodes did not join: {}",
                       missing.size(),
                       nodes_.size(),
                       fmt::join(missing, ", ")))
            .with_fix(
                fmt::format(
                    "check that they reach port {} of the head (firewall, "
                    "'lockstep doctor --hosts')",
                    port_));
      }
      serve(std::min<Duration>(deadline.left(), kScan));
    }
  }

  void close(os::Deadline deadline) override {
    closing_ = true;
    for (size_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node].peer != 0) {
        (void)tell(node, Bye{}).has_value();
      }
    }
    while (!deadline.passed() && !present_peers_.empty()) {
      serve(std::min<Duration>(deadline.left(), kScan));
    }
  }

 private:
  struct Peer {
    std::unique_ptr<wire::Channel> channel;
    std::optional<size_t> node;  // none: a stranger
    os::Instant since;
    std::string address;
    bool writing = false;  // the epoll waits for room, too
  };
  struct Node {
    std::string host;
    std::optional<Join> join;
    uint64_t peer = 0;  // 0: not connected
    os::Instant heard;  // last sign of life, or when its connection closed
    std::string cut;    // why its connection closed
    bool lost = false;
    bool active = false;               // started and neither idle nor lost
    int generation = -1;               // that it takes part in
    uint64_t reports = 0;              // that came in this session
    std::vector<std::string> waiting;  // words for when it is back
  };

  void watch_listener(bool on) {
    epoll_event event{};
    event.events = on ? uint32_t{EPOLLIN} : 0;
    event.data.u64 = 0;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listener_.get(), &event) !=
        0) {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_.get(), &event);
    }
    accepting_ = on;
  }

  // Takes what came, waiting for it at most this long, and acts on time.
  void serve(Duration wait) {
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
    const os::Instant now = clock_.now();
    if (!scanned_ || now - *scanned_ >= kScan || !accepting_) {
      scanned_ = now;
      scan(now);
    }
  }

  void accept_all() {
    for (int i = 0; i < kMostNews; ++i) {
      os::Descriptor socket(
          ::accept4(
              listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM ||
            errno == ENOBUFS) {
          if (strangers_.empty()) {
            watch_listener(false);  // until the next scan
            return;
          }
          refuse(*strangers_.begin(), "gave way to a newer one");
          continue;
        }
        return;
      }
      const uint64_t id = ++last_peer_;
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
      ::epoll_ctl(
          epoll_.get(), EPOLL_CTL_ADD, peer.channel->descriptor(), &event);
      peers_.emplace(id, std::move(peer));
      strangers_.insert(id);
      if (strangers_.size() > kMaxStrangers) {
        refuse(*strangers_.begin(), "gave way to a newer one");
      }
    }
  }

  void pump(uint64_t id) {
    const auto found = peers_.find(id);
    if (found == peers_.end()) {
      return;  // went in this turn
    }
    std::vector<std::string> messages;
    const Result<void> result = found->second.channel->pump(messages);
    for (const std::string& message : messages) {
      if (!take(id, message)) {
        return;  // it is gone
      }
    }
    if (!result) {
      drop(id, result.error().message());
      return;
    }
    watch_writing(id);
  }

  void watch_writing(uint64_t id) {
    Peer& peer = peers_.at(id);
    const bool wanted = peer.channel->wants_to_write();
    if (wanted == peer.writing) {
      return;
    }
    peer.writing = wanted;
    epoll_event event{};
    event.events = EPOLLIN | (wanted ? uint32_t{EPOLLOUT} : 0);
    event.data.u64 = id;
    ::epoll_ctl(
        epoll_.get(), EPOLL_CTL_MOD, peer.channel->descriptor(), &event);
  }

  // One message; false when its sender had to go.
  bool take(uint64_t id, const std::string& bytes) {
    auto message = decode_agent_message(bytes);
    if (!message) {
      drop(id, message.error().message());
      return false;
    }
    Peer& peer = peers_.at(id);
    if (!peer.node) {
      if (const auto* join = std::get_if<Join>(&*message)) {
        return admit(id, *join);
      }
      drop(id, "spoke before it joined");
      return false;
    }
    const size_t node = *peer.node;
    nodes_[node].heard = clock_.now();
    if (auto* reports = std::get_if<Reports>(&*message)) {
      return take_reports(id, node, *reports);
    }
    if (const auto* log = std::get_if<LogBytes>(&*message)) {
      if (const auto stored = logs_.take(node, *log); !stored) {
        drop(id, stored.error().message());
        return false;
      }
    } else if (const auto* rest = std::get_if<LogRest>(&*message)) {
      logs_.take(node, *rest);
    }
    return true;
  }

  // Answers a join; false when it was refused.
  bool admit(uint64_t id, const Join& join) {
    const auto node = static_cast<size_t>(join.node);
    std::string reason;
    if (join.version != kAgentProtocol) {
      reason = fmt::format(
          "speaks version {} of the agents' protocol, this head {}",
          join.version,
          kAgentProtocol);
    } else if (node >= nodes_.size()) {
      reason =
          fmt::format("is node {}, this run has {}", join.node, nodes_.size());
    } else if (closing_) {
      reason = "came when the run was over";
    } else if (
        nodes_[node].peer != 0 && nodes_[node].join->session != join.session) {
      reason = fmt::format(
          "is node {}, which has joined already from {}",
          join.node,
          peers_.at(nodes_[node].peer).address);
    }
    if (!reason.empty()) {
      (void)send(id, Refuse{reason}).has_value();
      refuse(id, reason);
      return false;
    }
    Node& one = nodes_[node];
    if (one.join && one.join->session != join.session) {
      lose(node, "its agent was started anew");
      one.reports = 0;
    }
    if (one.peer != 0) {  // the same one again: the old connection is dead
      forget(one.peer);
    }
    if (node >= options_.hosts.size() && !join.host.empty()) {
      one.host = join.host;
    }
    note_skew(one, join);
    one.join = join;
    one.heard = clock_.now();
    one.peer = id;
    peers_.at(id).node = node;
    strangers_.erase(id);
    present_peers_.insert(id);
    Welcome welcome;
    welcome.lease = options_.lease;
    welcome.generation = one.lost ? -1 : one.generation;
    welcome.heard = one.reports;
    welcome.logs = logs_.came(node);
    (void)send(id, welcome).has_value();
    for (const std::string& words : std::exchange(one.waiting, {})) {
      (void)peers_.at(id).channel->send(words).has_value();
    }
    watch_writing(id);
    return true;
  }

  void note_skew(const Node& node, const Join& join) {
    const double skew = join.time - clock_.unix_seconds();
    if (std::abs(skew) > kNotedSkew && !node.join) {
      log_warning(
          fmt::format(
              "{}: its clock is {} {} the head's; times of its events differ",
              node.host,
              format_duration(from_seconds(std::abs(skew))),
              skew > 0 ? "ahead of" : "behind"));
    }
  }

  bool take_reports(uint64_t id, size_t node, Reports& reports) {
    Node& one = nodes_[node];
    if (reports.first > one.reports) {
      drop(id, "left out reports");
      return false;
    }
    bool idle = false;
    const uint64_t known = one.reports - reports.first;
    for (size_t i = known; i < reports.reports.size(); ++i) {
      ++one.reports;
      if (one.lost || reports.generation != one.generation) {
        continue;  // of ranks that were given up
      }
      Report& report = reports.reports[i];
      if (std::holds_alternative<NodeIdle>(report)) {
        one.active = false;
        idle = true;
      } else if (std::holds_alternative<NodeLost>(report)) {
        one.active = false;
        one.lost = true;
        logs_.close(node);
      }
      reports_.push_back({node, std::move(report)});
    }
    if (idle) {  // a shim waits for this to go
      (void)tell(node, Beat{clock_.unix_seconds(), one.reports}).has_value();
    }
    return true;
  }

  // Through the node's connection, or kept until it is back.
  Result<void> tell(size_t node, const HeadMessage& message) {
    Node& one = nodes_.at(node);
    if (one.peer == 0) {
      if (one.join && !one.lost) {
        one.waiting.push_back(encode(message));
      }
      return {};
    }
    LOCKSTEP_TRY(send(one.peer, message));
    watch_writing(one.peer);
    return {};
  }

  Result<void> send(uint64_t id, const HeadMessage& message) {
    // A peer that is gone is found by the next pump.
    const Result<void> sent = peers_.at(id).channel->send(encode(message));
    return !sent && sent.error().code() == ErrorCode::kInvalidInput
               ? sent
               : Result<void>();
  }

  void forget(uint64_t id) {
    peers_.erase(id);
    strangers_.erase(id);
    present_peers_.erase(id);
  }

  // A connection that ended or broke a rule.
  void drop(uint64_t id, const std::string& why) {
    const std::optional<size_t> node = peers_.at(id).node;
    if (!node) {
      refuse(id, why);
      return;
    }
    forget(id);
    Node& one = nodes_[*node];
    one.peer = 0;
    one.heard = clock_.now();
    one.cut = why;
    if (!closing_) {
      log_debug(fmt::format("{}: {}", one.host, why));
    }
  }

  void refuse(uint64_t id, const std::string& why) {
    const std::string address = peers_.at(id).address;
    forget(id);
    ++refused_;
    ++unsaid_;
    refusal_ = why.starts_with(address) ? why : address + " " + why;
    say_refusal();
  }

  void say_refusal() {
    const os::Instant now = clock_.now();
    if (unsaid_ == 0 || (said_ && now - *said_ < seconds(1))) {
      return;
    }
    said_ = now;
    log_warning(
        unsaid_ == 1
            ? fmt::format("refused a connection: {}", refusal_)
            : fmt::format(
                  "refused {} connections, the last: {}", unsaid_, refusal_));
    unsaid_ = 0;
  }

  void lose(size_t node, const std::string& why) {
    Node& one = nodes_[node];
    if (one.active) {
      reports_.push_back({node, NodeLost{why}});
    }
    one.active = false;
    one.lost = true;
    one.generation = -1;
    one.waiting.clear();
    logs_.close(node);
  }

  void scan(os::Instant now) {
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
    say_refusal();
    const bool beat = !beaten_ || now - *beaten_ >= options_.beat;
    if (beat) {
      beaten_ = now;
    }
    for (size_t node = 0; node < nodes_.size(); ++node) {
      check(node, now, beat);
    }
  }

  void check(size_t node, os::Instant now, bool beat) {
    Node& one = nodes_[node];
    const Duration silent = now - one.heard;
    if (one.peer == 0) {
      if (one.join && !one.lost && !closing_ && silent > options_.patience) {
        lose(node, "its agent is gone: " + one.cut);
      }
      return;
    }
    if (silent > options_.lease) {
      forget(one.peer);
      one.peer = 0;
      lose(
          node,
          fmt::format(
              "no sign of life for {} (cut off, switched off or hung)",
              format_duration(options_.lease)));
      return;
    }
    if (peers_.at(one.peer).channel->queued() > kMostQueued) {
      drop(one.peer, "does not take what it is sent");
    } else if (beat) {
      (void)tell(node, Beat{clock_.unix_seconds(), one.reports}).has_value();
    }
  }

  HubOptions options_;
  Key key_;
  const os::Clock& clock_;
  os::Descriptor listener_;
  int port_;
  os::Descriptor epoll_;
  LogStore logs_;
  std::vector<Node> nodes_;
  std::map<uint64_t, Peer> peers_;    // by number, oldest first
  std::set<uint64_t> strangers_;      // that did not join
  std::set<uint64_t> present_peers_;  // that did
  uint64_t last_peer_ = 0;
  std::vector<NodeReport> reports_;
  bool accepting_ = true;
  bool closing_ = false;
  std::optional<os::Instant> scanned_, beaten_, said_;
  size_t refused_ = 0;
  size_t unsaid_ = 0;  // refusals not logged yet
  std::string refusal_;
};

}  // namespace

Result<std::unique_ptr<Hub>> Hub::open(
    const HubOptions& options,
    const Key& key,
    const record::RunDirectory& run,
    const os::Clock& clock) {
  raise_descriptor_limit();
  int port = 0;
  LOCKSTEP_ASSIGN(os::Descriptor listener, listen_on(options, port));
  return std::make_unique<EpollHub>(
      options, key, run, clock, std::move(listener), port);
}

}  // namespace lockstep::launch
