#include "lockstep/launch/hub.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "lockstep/base/log.h"
#include "lockstep/launch/connections.h"
#include "lockstep/launch/log_store.h"
#include "lockstep/launch/member.h"

namespace lockstep::launch {
namespace {

constexpr Duration kScan = std::chrono::milliseconds(100);
constexpr size_t kMostQueued = size_t{64} << 20;

class AgentHub : public Hub {
 public:
  AgentHub(
      const HubOptions& options,
      const record::RunDirectory& run,
      const os::Clock& clock)
      : options_(options), clock_(clock), logs_(run), nodes_(options.nodes) {
    for (size_t node = 0; node < nodes_.size(); ++node) {
      nodes_[node].host = node < options.hosts.size()
                              ? options.hosts[node]
                              : fmt::format("node {}", node);
    }
  }

  Result<void> listen(const Key& key) {
    ConnectionUser user;
    user.take = [this](uint64_t id, const std::string& bytes) {
      take(id, bytes);
    };
    user.ended = [this](uint64_t id, const std::string& why) { cut(id, why); };
    LOCKSTEP_ASSIGN(
        connections_,
        Connections::open(
            {options_.address, options_.first_port, options_.last_port},
            key,
            clock_,
            std::move(user)));
    return {};
  }

  int port() const override { return connections_->port(); }
  size_t size() const override { return nodes_.size(); }
  const std::string& host(size_t node) const override {
    return nodes_.at(node).host;
  }
  bool is_lost(size_t node) const override { return nodes_.at(node).lost; }
  bool any_away() const override {
    return std::ranges::any_of(
        nodes_, [now = clock_.now(), this](const Member& node) {
          return node.is_away(now, options_.lease);
        });
  }
  size_t refused() const override { return connections_->refused(); }
  int descriptor() const override { return connections_->descriptor(); }
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

  std::string session(size_t node) const override {
    const Member& one = nodes_.at(node);
    return one.join ? one.join->session : "";
  }

  void readmit(size_t node) override { nodes_.at(node).lost = false; }

  Result<void> start(size_t node, const StartRequest& request) override {
    Member& one = nodes_.at(node);
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
      for (const Member& node : nodes_) {
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
                    port()));
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
    while (!deadline.passed() && connections_->admitted() > 0) {
      serve(std::min<Duration>(deadline.left(), kScan));
    }
  }

 private:
  // Takes what came, waiting for it at most this long, and acts on time.
  void serve(Duration wait) {
    connections_->serve(wait);
    const os::Instant now = clock_.now();
    if (!scanned_ || now - *scanned_ >= kScan) {
      scanned_ = now;
      scan(now);
    }
  }

  void take(uint64_t id, const std::string& bytes) {
    auto message = decode_agent_message(bytes);
    if (!message) {
      drop(id, message.error().message());
      return;
    }
    const auto found = node_of_.find(id);
    if (found == node_of_.end()) {
      if (const auto* join = std::get_if<Join>(&*message)) {
        admit(id, *join);
      } else {
        drop(id, "spoke before it joined");
      }
      return;
    }
    const size_t node = found->second;
    Member& one = nodes_[node];
    const os::Instant now = one.heard = one.spoke = clock_.now();
    if (auto* reports = std::get_if<Reports>(&*message)) {
      one.note_clock(reports->clock, now);
      take_reports(id, node, std::move(*reports));
    } else if (const auto* beat = std::get_if<Beat>(&*message)) {
      one.note_clock(beat->clock, now);
    } else if (const auto* log = std::get_if<LogBytes>(&*message)) {
      if (const auto stored = logs_.take(node, *log); !stored) {
        drop(id, stored.error().message());
      }
    } else if (const auto* rest = std::get_if<LogRest>(&*message)) {
      logs_.take(node, *rest);
    }
  }

  void admit(uint64_t id, const Join& join) {
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
    } else if (nodes_[node].peer != 0 && nodes_[node].has_other_session(join)) {
      reason = fmt::format(
          "is node {}, which has joined already from {}",
          join.node,
          connections_->address(nodes_[node].peer));
    }
    if (!reason.empty()) {
      (void)connections_->send(id, encode(HeadMessage(Refuse{reason})))
          .has_value();
      connections_->refuse(id, reason);
      return;
    }
    Member& one = nodes_[node];
    if (one.has_other_session(join)) {
      lose(node, "its agent was started anew");
      one.reports = 0;
    }
    if (one.peer != 0) {  // the same one again: the old connection is dead
      forget(one.peer);
    }
    if (node >= options_.hosts.size() && !join.host.empty()) {
      one.host = join.host;
    }
    one.connect(id, join, clock_.now(), clock_.unix_seconds());
    node_of_[id] = node;
    connections_->admit(id);
    Welcome welcome;
    welcome.lease = options_.lease;
    welcome.generation = one.lost ? -1 : one.generation;
    welcome.heard = one.reports;
    welcome.logs = logs_.came(node);
    (void)connections_->send(id, encode(HeadMessage(welcome))).has_value();
    for (const std::string& words : std::exchange(one.waiting, {})) {
      (void)connections_->send(id, words).has_value();
    }
  }

  void take_reports(uint64_t id, size_t node, Reports batch) {
    auto reports = nodes_[node].take(std::move(batch), clock_.now());
    if (!reports) {
      drop(id, reports.error().message());
      return;
    }
    bool idle = false;
    for (Report& report : *reports) {
      idle |= std::holds_alternative<NodeIdle>(report);
      if (std::holds_alternative<NodeLost>(report)) {
        logs_.close(node);
      }
      reports_.push_back({node, std::move(report)});
    }
    if (idle) {  // a shim waits for this to go
      send_beat(node);
    }
  }

  void send_beat(size_t node) {
    const Beat beat{clock_.unix_seconds(), nodes_[node].reports, clock_.now()};
    (void)tell(node, beat).has_value();
  }

  // Through the node's connection, or kept until it is back.
  Result<void> tell(size_t node, const HeadMessage& message) {
    Member& one = nodes_.at(node);
    if (one.peer == 0) {
      if (one.join && !one.lost) {
        one.waiting.push_back(encode(message));
      }
      return {};
    }
    return connections_->send(one.peer, encode(message));
  }

  // Who broke a rule, or takes nothing.
  void drop(uint64_t id, const std::string& why) {
    if (node_of_.contains(id)) {
      connections_->close(id);
      cut(id, why);
    } else {
      connections_->refuse(id, why);
    }
  }

  void forget(uint64_t id) {
    connections_->close(id);
    node_of_.erase(id);
  }

  // The connection with a node is gone.
  void cut(uint64_t id, const std::string& why) {
    Member& one = nodes_[node_of_.at(id)];
    node_of_.erase(id);
    one.disconnect(why, clock_.now());
    if (!closing_) {
      log_debug(fmt::format("{}: {}", one.host, why));
    }
  }

  void lose(size_t node, const std::string& why) {
    Member& one = nodes_[node];
    if (one.active) {
      reports_.push_back({node, NodeLost{why, one.spoke}});
    }
    one.active = false;
    one.lost = true;
    one.generation = -1;
    one.waiting.clear();
    logs_.close(node);
  }

  void scan(os::Instant now) {
    const bool beat = !beaten_ || now - *beaten_ >= options_.beat;
    if (beat) {
      beaten_ = now;
    }
    for (size_t node = 0; node < nodes_.size(); ++node) {
      check(node, now, beat);
    }
  }

  void check(size_t node, os::Instant now, bool beat) {
    Member& one = nodes_[node];
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
    if (connections_->queued(one.peer) > kMostQueued) {
      drop(one.peer, "does not take what it is sent");
    } else if (beat) {
      send_beat(node);
    }
  }

  HubOptions options_;
  const os::Clock& clock_;
  LogStore logs_;
  std::vector<Member> nodes_;
  std::unique_ptr<Connections> connections_;
  std::map<uint64_t, size_t> node_of_;  // by connection
  std::vector<NodeReport> reports_;
  bool closing_ = false;
  std::optional<os::Instant> scanned_, beaten_;
};

}  // namespace

Result<std::unique_ptr<Hub>> Hub::open(
    const HubOptions& options,
    const Key& key,
    const record::RunDirectory& run,
    const os::Clock& clock) {
  auto hub = std::make_unique<AgentHub>(options, run, clock);
  LOCKSTEP_TRY(hub->listen(key));
  return hub;
}

}  // namespace lockstep::launch
