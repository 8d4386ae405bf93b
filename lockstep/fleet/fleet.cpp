#include "lockstep/fleet/fleet.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <ctime>
#include <map>
#include <set>
#include <thread>

#include "lockstep/base/id.h"
#include "lockstep/cloud/failure.h"
#include "lockstep/fleet/work.h"

namespace lockstep::fleet {
namespace {

using nlohmann::json;

// What every error of acquire ends with, unless nothing was made.
Error given_back(Error error, size_t launched) {
  if (launched == 0) {
    return error;
  }
  return std::move(error).with_context(
      fmt::format(
          "{} machine{} given back",
          launched,
          launched == 1 ? " was" : "s were"));
}

constexpr std::string_view kTraffic = "traffic";  // in the journal
// Between two clocks that are right, one of which tells whole seconds.
constexpr double kClockSlack = 5;

// Whether a machine would have to be launched.
bool is_short(const Cluster& cluster, const std::vector<Node>& there) {
  return std::ranges::any_of(cluster.wanted(), [&](const auto& one) {
    return std::ranges::count(there, one.node, &Node::name) == 0;
  });
}

Error used_up(const Cluster& cluster) {
  return Error(
             ErrorCode::kInvalidInput,
             fmt::format(
                 "{} of cluster '{}' is used up: less than a minute is left "
                 "for another machine",
                 !cluster.budget ? "max_duration"
                 : cluster.max_duration
                     ? "budget or max_duration"
                     : "the budget of " + format_money(*cluster.budget),
                 cluster.name))
      .with_fix(
          fmt::format(
              "raise it, or begin anew after 'lockstep down {}'",
              cluster.name));
}

// "User initiated (2026-11-15 18:00:00 GMT)" in Unix seconds; 0: no time.
double time_of_end(const std::string& reason) {
  for (size_t at = reason.find('('); at != std::string::npos;
       at = reason.find('(', at + 1)) {
    std::tm time = {};
    if (::strptime(reason.c_str() + at + 1, "%Y-%m-%d %H:%M:%S", &time) !=
        nullptr) {
      return static_cast<double>(::timegm(&time));
    }
  }
  return 0;
}

}  // namespace

double time_of_end(const JournalStep& ended) {
  return ended.order.is_object() ? ended.order.value("at", ended.time)
                                 : ended.time;
}

void side_by_side(
    size_t count,
    size_t most,
    const std::function<void(size_t)>& action) {
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      action(i);
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 1; i < std::min(count, most); ++i) {
    threads.emplace_back(work);
  }
  work();
  for (std::thread& thread : threads) {
    thread.join();
  }
}

Node node_of(const cloud::Instance& instance) {
  Node node;
  node.instance = instance;
  node.name = tag_of(instance.tags, cloud::kNodeTag);
  node.user = tag_of(instance.tags, kUserTag);
  const std::string hourly = tag_of(instance.tags, kHourlyTag);
  node.price_known = !hourly.empty();
  node.hourly = Money::from_dollars(std::atof(hourly.c_str()));
  return node;
}

Result<std::vector<Node>> live_nodes(
    cloud::Provider& provider,
    const std::string& cluster) {
  LOCKSTEP_ASSIGN(
      const auto instances,
      provider.instances(
          {.tags = {{std::string(cloud::kClusterTag), cluster}}, .ids = {}}));
  std::vector<Node> nodes;
  for (const cloud::Instance& one : instances) {
    if (one.is_live()) {
      nodes.push_back(node_of(one));
    }
  }
  // "blue-2" before "blue-10".
  std::ranges::sort(nodes, {}, [](const Node& node) {
    return std::pair(node.name.size(), node.name);
  });
  return nodes;
}

std::string access_name(const std::string& cluster) {
  return "lockstep-" + cluster;
}

Fleet::Fleet(FleetOptions options) : options_(std::move(options)) {}

void Fleet::say(const std::string& text) const {
  if (options_.say) {
    options_.say(text);
  }
}

bool Fleet::is_stopped() const {
  return options_.stopped && options_.stopped();
}

double Fleet::cloud_time() const {
  return options_.clock->unix_seconds() +
         (options_.skew ? to_seconds(options_.skew()) : 0);
}

cloud::Selection Fleet::selection() const {
  return {
      .tags = {{std::string(cloud::kClusterTag), options_.cluster}}, .ids = {}};
}

Result<std::optional<Cluster>> Fleet::wanted() const {
  const auto step = options_.journal->last("want");
  const auto down = options_.journal->last("down");
  if (!step || (down && down->number > step->number && down->outcome)) {
    return std::optional<Cluster>();
  }
  LOCKSTEP_ASSIGN(
      Cluster cluster, cluster_from_json(step->order.value("cluster", json())));
  return std::optional<Cluster>(std::move(cluster));
}

// Two people may choose one name, or one of them on two machines. What one has
// must not end because the other wants fewer.
Result<std::vector<Node>> Fleet::own_nodes() {
  LOCKSTEP_ASSIGN(auto there, live_nodes(*options_.provider, options_.cluster));
  if (options_.shares_name) {
    return there;
  }
  std::set<std::string> lives;  // tokens begin with one of these
  for (const JournalStep& step : options_.journal->steps()) {
    if (step.step == "want") {
      lives.insert(step.order.value("id", "") + "-");
    }
  }
  for (const Node& node : there) {
    const cloud::Tags& tags = node.instance.tags;
    const std::string token = tag_of(tags, cloud::kTokenTag);
    if (std::ranges::none_of(lives, [&](const std::string& life) {
          return token.starts_with(life);
        })) {
      const std::string owner = tag_of(tags, cloud::kOwnerTag);
      return Error(
                 ErrorCode::kExists,
                 fmt::format(
                     "a cluster '{}' is up that was made elsewhere, by {} ({})",
                     options_.cluster,
                     owner.empty() ? "somebody" : owner,
                     node.instance.id))
          .with_fix(
              fmt::format(
                  "choose another name; 'lockstep down {}' would end it",
                  options_.cluster));
    }
  }
  return there;
}

Result<std::vector<Node>> Fleet::acquire(
    const Cluster& cluster,
    const Plan& plan) {
  if (plan.groups.size() != cluster.groups.size()) {
    return Error(ErrorCode::kInternal, "the plan is of another cluster");
  }
  LOCKSTEP_ASSIGN(const auto there, own_nodes());
  Work work;
  work.cluster = cluster;
  work.plan = plan;
  const double now = options_.clock->unix_seconds();
  // The same life goes on unless it was ended.
  const auto last = options_.journal->last("want");
  const auto down = options_.journal->last("down");
  const bool goes_on = last && (!down || down->number < last->number);
  if (goes_on) {
    work.id = last->order.value("id", "");
  } else {
    LOCKSTEP_TRY(options_.journal->forget());
  }
  if (work.id.empty()) {
    work.id = make_run_id(cluster.name, static_cast<int64_t>(now));
  }
  LOCKSTEP_ASSIGN(const ClusterCost spent, goes_on ? cost() : cost_since(now));
  if (plan.longest_life) {
    // What was spent before, at the new rate, is gone from the time.
    const double used =
        plan.hourly_most > Money() && cluster.budget
            ? spent.so_far.dollars() / plan.hourly_most.dollars() * 3600
            : 0;
    const double life = to_seconds(*plan.longest_life) - used;
    if (life < to_seconds(kLeastBilled) && is_short(cluster, there)) {
      return used_up(cluster);
    }
    work.end = cloud_time() + std::max(1.0, life);
  }
  LOCKSTEP_TRY(options_.journal->note(
      "want", cluster.name, {{"id", work.id}, {"cluster", to_json(cluster)}}));
  for (const Cluster::Wanted& one : cluster.wanted()) {
    Work::Slot slot;
    slot.name = one.node;
    slot.group = one.group;
    work.slots.push_back(std::move(slot));
  }
  const auto steps = {
      &Fleet::adopt,
      &Fleet::make_access,
      &Fleet::launch_all,
      &Fleet::wait_ready,
      &Fleet::set_up};
  for (const auto step : steps) {
    Result<void> done = (this->*step)(work);
    if (done && is_stopped()) {
      done = Error(ErrorCode::kInterrupted, "interrupted");
    }
    if (!done) {
      const size_t launched = work.launched.size();
      undo(work);
      return given_back(std::move(done.error()), launched);
    }
  }
  LOCKSTEP_TRY(options_.journal->note("up", cluster.name, nullptr));
  std::vector<Node> nodes;
  for (Work::Slot& slot : work.slots) {
    if (slot.node && slot.ready) {
      nodes.push_back(std::move(*slot.node));
    }
  }
  return nodes;
}

Result<std::vector<Node>> Fleet::nodes() {
  LOCKSTEP_ASSIGN(
      std::vector<Node> nodes,
      live_nodes(*options_.provider, options_.cluster));
  LOCKSTEP_ASSIGN(const auto cluster, wanted());
  std::map<std::string, size_t> groups;
  if (cluster) {
    for (const Cluster::Wanted& one : cluster->wanted()) {
      groups[one.node] = one.group;
    }
  }
  for (Node& node : nodes) {
    node.group = groups[node.name];
  }
  return nodes;
}

Result<void> Fleet::renew(const std::vector<Node>& nodes, Duration time) {
  return renew_leases(
      *options_.shell,
      nodes,
      time,
      os::Deadline::after(std::chrono::seconds(30), *options_.clock));
}

Result<void> Fleet::note_traffic(Bytes bytes) {
  return options_.journal->note(
      std::string(kTraffic), "", {{"bytes", bytes.count}});
}

Result<ClusterCost> Fleet::cost() {
  const auto steps = options_.journal->steps();
  return cost_since(steps.empty() ? 0 : steps.front().time);
}

// Of one life: the cloud lists machines for an hour after their end, those of
// an earlier life of that name too. What the journal knows is of this one.
Result<ClusterCost> Fleet::cost_since(double since) {
  LOCKSTEP_ASSIGN(
      const auto instances, options_.provider->instances(selection()));
  const double now = cloud_time();
  std::map<std::string, Life> lives;  // by id
  ClusterCost cost;
  std::map<std::string, double> ended;
  for (const JournalStep& step : options_.journal->steps()) {
    if (step.step == "ended") {
      // Whoever ended it, or saw that first, knows best.
      ended.try_emplace(step.subject, time_of_end(step));
    }
    if (step.step != "launch" || !step.outcome ||
        !step.outcome->contains("id")) {
      continue;
    }
    Life life;
    life.hourly = Money::from_nanos(step.outcome->value("hourly", int64_t{0}));
    life.launched = step.outcome->value("launched", step.time);
    lives[step.outcome->value("id", "")] = life;
  }
  std::set<std::string> seen;
  for (const cloud::Instance& one : instances) {
    const auto known = lives.find(one.id);
    if (!one.is_live() && known == lives.end() &&
        one.launched < since - kClockSlack) {
      continue;
    }
    seen.insert(one.id);
    Node node = node_of(one);
    if (known != lives.end() && !node.price_known) {
      node.hourly = known->second.hourly;
      node.price_known = node.hourly > Money();
    }
    cost.known = cost.known && node.price_known;
    Life life{node.hourly, one.launched, 0};
    if (!one.is_live()) {
      const double at = time_of_end(one.reason);
      life.ended = at > 0 ? at : now;
    } else {
      cost.hourly = cost.hourly + node.hourly;
    }
    lives[one.id] = life;
  }
  // The cloud forgets machines after an hour; the first who sees that writes
  // it down.
  std::vector<Life> all;
  for (auto& [id, life] : lives) {
    if (ended.contains(id)) {
      life.ended = ended[id];
    } else if (!seen.contains(id)) {
      life.ended = now;
    }
    if (life.ended > 0 && !ended.contains(id)) {
      LOCKSTEP_TRY(options_.journal->note("ended", id, {{"at", life.ended}}));
    }
    all.push_back(life);
  }
  cost.so_far = cost_so_far(all, now);
  for (const JournalStep& step : options_.journal->steps()) {
    if (step.step == kTraffic && step.time >= since - kClockSlack) {
      cost.traffic =
          cost.traffic +
          traffic_cost(Bytes{step.order.value("bytes", uint64_t{0})});
    }
  }
  cost.so_far = cost.so_far + cost.traffic;
  return cost;
}

}  // namespace lockstep::fleet
