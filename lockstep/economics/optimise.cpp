#include "lockstep/economics/optimise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/base/units.h"
#include "lockstep/economics/cluster_set.h"
#include "lockstep/economics/robust.h"

namespace lockstep::economics {
namespace {

// Periods that speak for how fast a machine is now.
constexpr size_t kRecent = 3;
constexpr size_t kOlder = 6;  // and for what its kind does
// Doubt about a machine of a kind that is not in the cluster.
constexpr double kUnseenSpread = 0.1;
// One that computes this much longer than its kind is not what was rented.
constexpr double kDegraded = 1.25;

struct Knowledge {
  std::map<std::string, double> nodes;  // compute by name, over recent periods
  std::vector<double> kinds;            // by kind; 0: unknown
};

Decision keep(std::string reason) {
  Decision decision;
  decision.reason = std::move(reason);
  return decision;
}

// What a kind does is told by its better nodes: a slow one is a bad one.
double better_third(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 3];
}

Knowledge learn(
    const History& history,
    std::span<const CatalogueEntry> catalogue) {
  std::map<std::string, std::vector<double>> by_node;
  std::vector<std::vector<double>> by_kind(catalogue.size());
  const size_t size = history.periods.size();
  for (size_t i = size > kRecent ? size - kRecent : 0; i < size; ++i) {
    for (const NodeSight& node : history.periods[i].nodes) {
      if (node.compute > 0 && node.kind < catalogue.size()) {
        by_node[node.name].push_back(node.compute);
      }
    }
  }
  for (size_t i = size > kOlder ? size - kOlder : 0; i < size; ++i) {
    for (const NodeSight& node : history.periods[i].nodes) {
      if (node.compute > 0 && node.kind < catalogue.size()) {
        by_kind[node.kind].push_back(node.compute);
      }
    }
  }
  Knowledge known;
  for (const auto& [name, values] : by_node) {
    known.nodes[name] = median(values);
  }
  for (const auto& values : by_kind) {
    known.kinds.push_back(values.empty() ? 0 : better_third(values));
  }
  // When all that are here slowed down together, the work has changed, not the
  // machines: then kinds that are not here slow down as well.
  double since_seen = 0;
  double since_probe = 0;
  const std::vector<NodeSight>& here = history.periods.back().nodes;
  for (const NodeSight& node : here) {
    const auto found = known.nodes.find(node.name);
    if (found == known.nodes.end() || node.kind >= catalogue.size()) {
      continue;
    }
    const auto lower = [&](double& least, double before) {
      const double ratio = before > 0 ? found->second / before : 0;
      least = ratio > 0 && (least == 0 || ratio < least) ? ratio : least;
    };
    lower(since_seen, known.kinds[node.kind]);
    lower(since_probe, catalogue[node.kind].compute);
  }
  for (size_t kind = 0; kind < catalogue.size(); ++kind) {
    if (known.kinds[kind] == 0) {
      known.kinds[kind] =
          catalogue[kind].compute * (since_probe > 0 ? since_probe : 1);
    } else if (here.size() > 1 && since_seen > 0) {
      known.kinds[kind] *= since_seen;
    }
  }
  return known;
}

size_t full_periods_since_change(const History& history) {
  const size_t from =
      history.changes.empty() ? 0 : history.changes.back().period + 1;
  size_t count = 0;
  for (size_t i = from; i < history.periods.size(); ++i) {
    count += history.periods[i].full ? 1 : 0;
  }
  return count;
}

std::vector<ClusterSet> candidates(
    const ClusterSet& now,
    const Knowledge& known,
    std::span<const CatalogueEntry> catalogue,
    const OptimiseOptions& options,
    double communication) {
  std::vector<ClusterSet> sets;
  const int measured = static_cast<int>(now.members.size());
  const auto is_whole = [&](size_t nodes) {
    const int64_t parts = static_cast<int64_t>(nodes) * options.parts_a_node;
    return options.batch == 0 || options.batch % parts == 0;
  };
  const auto add = [&](std::vector<Member> members) {
    if (!members.empty() && is_whole(members.size())) {
      sets.push_back(make_set(
          std::move(members), catalogue, options, communication, measured));
    }
  };
  // The same without its slowest, one after the other; and with each replaced.
  std::vector<Member> by_speed = now.members;
  std::ranges::stable_sort(by_speed, {}, &Member::compute);
  for (size_t size = by_speed.size() - 1; size > 0; --size) {
    add({by_speed.begin(), by_speed.begin() + static_cast<long>(size)});
  }
  std::vector<Member> repaired = now.members;
  bool any = false;
  for (Member& member : repaired) {
    const double usual = known.kinds[member.kind];
    const CatalogueEntry& kind = catalogue[member.kind];
    if (usual > 0 && member.compute > kDegraded * usual && kind.available > 0 &&
        kind.dollars_per_hour > 0) {
      member = {"", member.kind, usual, kUnseenSpread};
      any = true;
    }
  }
  if (any) {
    add(repaired);
  }
  // Every kind alone, in every number; those that are here and good stay.
  for (size_t kind = 0; kind < catalogue.size(); ++kind) {
    const CatalogueEntry& entry = catalogue[kind];
    const double usual = known.kinds[kind];
    if (entry.dollars_per_hour <= 0 || usual <= 0) {
      continue;
    }
    std::vector<Member> members;
    for (const Member& member : by_speed) {
      if (member.kind == kind && member.compute <= kDegraded * usual) {
        members.push_back(member);
      }
    }
    members.resize(
        std::min<size_t>(
            members.size(), static_cast<size_t>(options.most_nodes)));
    const size_t here = members.size();
    const size_t most = std::min<size_t>(
        static_cast<size_t>(options.most_nodes),
        here + static_cast<size_t>(std::max(entry.available, 0)));
    for (size_t size = 1; size <= most; ++size) {
      std::vector<Member> chosen(
          members.begin(),
          members.begin() + static_cast<long>(std::min(size, here)));
      while (chosen.size() < size) {
        chosen.push_back({"", kind, usual, kUnseenSpread});
      }
      add(std::move(chosen));
    }
  }
  return sets;
}

std::string set_text(
    const ClusterSet& set,
    std::span<const CatalogueEntry> catalogue) {
  std::map<size_t, int> counts;
  for (const Member& member : set.members) {
    ++counts[member.kind];
  }
  std::string text;
  for (const auto& [kind, count] : counts) {
    text += fmt::format(
        "{}{} x {}", text.empty() ? "" : " + ", count, catalogue[kind].name);
  }
  return text;
}

struct Judgement {
  double now = 0;     // rest of the run on the present set
  double then = 0;    // on the other
  double change = 0;  // dollars
  double gain = 0;    // after paying for the change
};

bool fits(
    const ClusterSet& set,
    const History& history,
    double change,
    double delay) {
  return (!history.budget_left ||
          change + rest_dollars(set, history.samples_left) <=
              *history.budget_left) &&
         (!history.seconds_left ||
          delay + rest_seconds(set, history.samples_left) <=
              *history.seconds_left);
}

Judgement compare(
    const ClusterSet& now,
    const ClusterSet& then,
    const History& history,
    std::span<const CatalogueEntry> catalogue,
    const OptimiseOptions& options) {
  Judgement result;
  result.change = change_dollars(now, then, catalogue, options.pause);
  if (options.goal == Goal::kCost) {
    result.now = rest_dollars(now, history.samples_left);
    result.then = rest_dollars(then, history.samples_left);
    result.gain = result.now - result.then - result.change;
  } else {
    result.now = rest_seconds(now, history.samples_left);
    result.then = rest_seconds(then, history.samples_left);
    result.gain = result.now - result.then - options.pause;
  }
  return result;
}

// What this and all earlier changes take, and what that is a share of, in the
// unit of the goal. Whoever wants time pays for more machines with dollars, as
// far as the budget goes.
std::pair<double, double> share_of_changes(
    const Judgement& judgement,
    const ClusterSet& then,
    const History& history,
    const OptimiseOptions& options) {
  if (options.goal == Goal::kTime) {
    const double pauses =
        options.pause * static_cast<double>(history.changes.size() + 1);
    return {pauses, pauses + judgement.now};
  }
  double changing = judgement.change;
  for (const PastChange& change : history.changes) {
    changing += change.dollars;
  }
  return {
      changing,
      history.dollars_spent + judgement.change +
          rest_dollars(then, history.samples_left)};
}

// Why a gain is not enough; empty when it is.
std::string objection(
    const Judgement& judgement,
    const ClusterSet& now,
    const ClusterSet& then,
    const History& history,
    const OptimiseOptions& options) {
  if (judgement.gain <= options.least_gain * judgement.now) {
    return fmt::format(
        "the best other set would save {:.1f}% of the rest, less than {:.0f}%",
        100 * std::max(judgement.gain, 0.0) / judgement.now,
        100 * options.least_gain);
  }
  const double price =
      options.goal == Goal::kCost ? judgement.change : options.pause;
  if (judgement.gain < options.gain_per_change * price) {
    return "the gain does not cover the cost of the change twice";
  }
  const double doubt = std::hypot(now.spread, then.spread);
  if (std::log(judgement.now / judgement.then) < options.sureness * doubt) {
    return "the gain is within the noise of what was measured";
  }
  const auto [changing, all] =
      share_of_changes(judgement, then, history, options);
  if (changing > options.most_changing * all) {
    return fmt::format(
        "changes would take {:.0f}% of all {}, more than {:.0f}%",
        100 * changing / all,
        options.goal == Goal::kCost ? "dollars" : "seconds",
        100 * options.most_changing);
  }
  return "";
}

}  // namespace

Decision decide(
    const History& history,
    std::span<const CatalogueEntry> catalogue,
    const OptimiseOptions& options) {
  if (history.periods.empty() || history.periods.back().nodes.empty()) {
    return keep("no period has been seen yet");
  }
  if (!(history.samples_left > 0)) {
    return keep("nothing is left to do");
  }
  const Knowledge known = learn(history, catalogue);
  std::vector<Member> members;
  for (const NodeSight& node : history.periods.back().nodes) {
    const auto found = known.nodes.find(node.name);
    if (found == known.nodes.end()) {
      return keep(
          fmt::format(
              "{} reports no compute time of its own: which machine is slow "
              "cannot "
              "be known",
              node.name));
    }
    if (node.kind >= catalogue.size() ||
        catalogue[node.kind].dollars_per_hour <= 0) {
      return keep(fmt::format("{} has no price", node.name));
    }
    members.push_back({node.name, node.kind, found->second, node.spread});
  }
  const size_t wanted = history.changes.empty() ? 1 : options.hold;
  if (const size_t seen = full_periods_since_change(history); seen < wanted) {
    return keep(
        fmt::format(
            "{} of {} full period{} seen since the last change",
            seen,
            wanted,
            wanted == 1 ? "" : "s"));
  }
  const double communication = history.periods.back().communication;
  const int measured = static_cast<int>(members.size());
  const ClusterSet now =
      make_set(std::move(members), catalogue, options, communication, measured);
  const bool now_fits = fits(now, history, 0, 0);
  const ClusterSet* best = nullptr;
  Judgement judgement;
  const auto sets = candidates(now, known, catalogue, options, communication);
  for (const ClusterSet& set : sets) {
    const Judgement one = compare(now, set, history, catalogue, options);
    if (fits(set, history, one.change, options.pause) &&
        (best == nullptr || one.gain > judgement.gain)) {
      best = &set;
      judgement = one;
    }
  }
  if (best == nullptr) {
    return keep(
        now_fits ? "no other set fits the budget and the time that is left"
                 : "nothing fits the budget or the time that is left: the run "
                   "will stop at its limit");
  }
  const std::string against =
      objection(judgement, now, *best, history, options);
  if (now_fits && !against.empty()) {
    return keep(against);
  }
  Decision decision;
  decision.action = Decision::Action::kChange;
  decision.dollars = judgement.change;
  decision.gain = judgement.gain;
  decision.start.assign(catalogue.size(), 0);
  for (const Member& member : now.members) {
    if (std::ranges::find(best->members, member.name, &Member::name) ==
        best->members.end()) {
      decision.stop.push_back(member.name);
    }
  }
  for (const Member& member : best->members) {
    decision.start[member.kind] += member.name.empty() ? 1 : 0;
  }
  const auto amount = [&](double value) {
    return options.goal == Goal::kCost
               ? format_money(Money::from_dollars(value))
               : format_duration(from_seconds(value));
  };
  decision.reason = fmt::format(
      "{} instead of {}: the rest {} {} instead of {}; the change costs {}{}",
      set_text(*best, catalogue),
      set_text(now, catalogue),
      options.goal == Goal::kCost ? "costs" : "takes",
      amount(judgement.then),
      amount(judgement.now),
      format_money(Money::from_dollars(judgement.change)),
      now_fits ? "" : "; the present set would pass the budget or the time");
  return decision;
}

}  // namespace lockstep::economics
