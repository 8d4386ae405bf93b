#include "lockstep/economics/race.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace lockstep::economics {
namespace {

constexpr double kSecondsPerHour = 3600;

// Logarithms of what is compared, and how sure they are.
struct Score {
  double value = 0;
  double spread = 0;
};
// What is raced for: mean x price, or the mean alone.
struct Goal {
  bool is_cost = true;
  double weight(const Racer& racer) const {
    return is_cost ? std::log(racer.dollars_per_hour) : 0;
  }
};
constexpr Goal kCost{true};
constexpr Goal kTime{false};

std::optional<Score> score(const Racer& racer, const Goal& goal) {
  if (!racer.iteration) {
    return std::nullopt;
  }
  return Score{
      std::log(racer.iteration->mean / racer.samples) + goal.weight(racer),
      racer.iteration->spread};
}

bool is_out(const Racer& racer, bool capped_too) {
  return racer.standing == Standing::kLost ||
         racer.standing == Standing::kFailed ||
         (capped_too && racer.standing == Standing::kCapped);
}

std::optional<size_t> best_of(
    std::span<const Racer> racers,
    const Goal& goal,
    const std::function<bool(const Racer&)>& counts) {
  std::optional<size_t> found;
  double lowest = 0;
  for (size_t i = 0; i < racers.size(); ++i) {
    const auto one = score(racers[i], goal);
    if (one && counts(racers[i]) && (!found || one->value < lowest)) {
      found = i;
      lowest = one->value;
    }
  }
  return found;
}

std::optional<size_t> best(std::span<const Racer> racers, const Goal& goal) {
  auto found = best_of(racers, goal, [&](const Racer& racer) {
    return !is_out(racer, goal.is_cost);
  });
  // Who failed after some iterations is better than nobody, but comes last.
  for (const bool capped_too : {false, true}) {
    if (!found) {
      found = best_of(racers, goal, [&](const Racer& racer) {
        return capped_too || !is_out(racer, false);
      });
    }
  }
  return found;
}

// One that is still inside the interval of the best may be the best itself.
bool may_win(
    const Racer& racer,
    const Racer& leader,
    const Goal& goal,
    double width,
    const Caution& caution) {
  const Score first = *score(leader, goal);
  if (const auto own = score(racer, goal)) {
    return own->value - first.value <=
           width * std::hypot(own->spread, first.spread);
  }
  if (racer.pending <= 0) {
    return true;
  }
  // No iteration yet: the first lasts longer than this, which is all we know.
  return std::log(racer.pending / racer.samples) + goal.weight(racer) -
             first.value <=
         width * std::hypot(caution.spread, first.spread);
}

double next_stage(const Racer& racer, const RaceOptions& options) {
  for (const double stage : options.stages) {
    if (stage > racer.reached) {
      return stage;
    }
  }
  return 0;
}

double dollars_an_iteration(const Racer& racer) {
  return racer.iteration
             ? racer.iteration->mean * racer.dollars_per_hour / kSecondsPerHour
             : 0;
}

double cap_of(std::span<const Racer> racers, const RaceOptions& options) {
  double all = 0;
  const double last = options.stages.empty() ? 0 : options.stages.back();
  for (const Racer& racer : racers) {
    all += std::max(last * dollars_an_iteration(racer), racer.dollars);
  }
  const double share = options.cap_share * all;
  return options.cap_dollars ? std::min(share, *options.cap_dollars) : share;
}

struct Contest {
  std::vector<size_t> alive;  // the leader among them, most likely first
  std::optional<size_t> leader;
};

Contest contest(
    std::span<const Racer> racers,
    const RaceOptions& options,
    const Goal& goal,
    double width) {
  Contest result;
  result.leader = best(racers, goal);
  if (width <= 0) {
    return result;
  }
  for (size_t i = 0; i < racers.size(); ++i) {
    if (is_out(racers[i], goal.is_cost)) {
      continue;
    }
    if (!result.leader || i == *result.leader ||
        may_win(
            racers[i], racers[*result.leader], goal, width, options.caution)) {
      result.alive.push_back(i);
    }
  }
  std::ranges::stable_sort(result.alive, {}, [&](size_t i) {
    const auto one = score(racers[i], goal);
    return one ? one->value : -INFINITY;
  });
  return result;
}

std::string
lost_reason(const Racer& racer, const Racer& leader, size_t leader_index) {
  if (!racer.iteration) {
    return fmt::format(
        "no iteration in {:.3g} s, where candidate {} needs {:.3g} s for one",
        racer.pending,
        leader_index,
        leader.iteration->mean);
  }
  const double ratio =
      std::exp(score(racer, kCost)->value - score(leader, kCost)->value);
  return fmt::format(
      "the same work costs {:.2f} times as much as on the cheapest", ratio);
}

}  // namespace

std::vector<Ruling> judge(
    std::span<const Racer> racers,
    const RaceOptions& options) {
  std::vector<Ruling> rulings(racers.size());
  const Contest cost = contest(racers, options, kCost, options.cost_width);
  const Contest time = contest(racers, options, kTime, options.time_width);
  const double cap = cap_of(racers, options);
  double spent = 0;
  for (const Racer& racer : racers) {
    spent += racer.dollars;
  }
  for (size_t i = 0; i < racers.size(); ++i) {
    rulings[i].standing = racers[i].standing;
    if (racers[i].standing != Standing::kRacing) {
      continue;
    }
    rulings[i].standing = Standing::kLost;
    if (cost.leader) {
      rulings[i].reason =
          lost_reason(racers[i], racers[*cost.leader], *cost.leader);
    }
  }
  // The rivals of the cheapest come first; what is left of the cap goes to
  // those of the fastest. Two rivals are always brought to the next stage when
  // only the share would forbid it: otherwise nothing could be decided.
  size_t brought = 0;
  const auto rule = [&](const Contest& race, const Goal& goal) {
    const bool decided = race.alive.size() < 2;
    for (const size_t i : race.alive) {
      const Racer& racer = racers[i];
      Ruling& ruling = rulings[i];
      if (racer.standing != Standing::kRacing ||
          ruling.standing == Standing::kRacing) {
        continue;
      }
      // What the first race found stands, unless the second goes on.
      const auto stop = [&](Standing standing, std::string reason) {
        if (ruling.standing == Standing::kLost) {
          ruling = {standing, 0, std::move(reason)};
        }
      };
      const double target = next_stage(racer, options);
      if (target == 0 || (decided && racer.reached >= options.at_least)) {
        stop(
            Standing::kEnough,
            target == 0 ? "measured to the last stage"
                        : "nobody else can be the cheapest");
        continue;
      }
      const double price =
          (target - racer.reached) * dollars_an_iteration(racer);
      const bool hard_cap =
          options.cap_dollars && (spent + price > *options.cap_dollars ||
                                  spent >= *options.cap_dollars);
      const bool wanted = goal.is_cost && brought < 2;
      const bool soft_cap = racer.iteration && spent + price > cap && !wanted;
      if (hard_cap || soft_cap) {
        stop(
            Standing::kCapped,
            fmt::format(
                "the cap of {:.3g} dollars on all probes leaves no room",
                hard_cap ? *options.cap_dollars : cap));
        continue;
      }
      spent += price;
      brought += goal.is_cost ? 1 : 0;
      ruling = {Standing::kRacing, target, ""};
    }
  };
  rule(cost, kCost);
  rule(time, kTime);
  return rulings;
}

std::optional<size_t> cheapest(std::span<const Racer> racers) {
  return best(racers, kCost);
}

std::optional<size_t> fastest(std::span<const Racer> racers) {
  return best(racers, kTime);
}

double cheaper_by(const Racer& first, const Racer& second) {
  const auto own = score(first, kCost);
  const auto other = score(second, kCost);
  if (!own || !other) {
    return 0;
  }
  return (other->value - own->value) / std::hypot(own->spread, other->spread);
}

}  // namespace lockstep::economics
