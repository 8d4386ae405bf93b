#include "lockstep/economics/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/units.h"

namespace lockstep::economics {
namespace {

std::optional<PlanRow>
make_row(const PlanOffer& offer, int nodes, const PlanWork& work) {
  PlanRow row;
  row.nodes = nodes;
  row.iteration = offer.scaling.iteration(nodes);
  const double samples =
      (offer.samples_a_node > 0 ? offer.samples_a_node : work.samples_a_node) *
      (offer.scaling.strong ? 1 : nodes);
  if (!(samples > 0) || !(work.samples > 0)) {
    return std::nullopt;
  }
  row.iterations = std::ceil(work.samples / samples);
  Work whole{.init = offer.init, .end = offer.end};
  const double early = std::min(row.iterations, offer.early_samples / samples);
  if (early > 0) {
    Estimate first = row.iteration;
    first.mean *= offer.early_ratio;
    whole.phases.push_back({early, first});
  }
  whole.phases.push_back({row.iterations - early, row.iteration, offer.drift});
  if (offer.epoch_end.mean > 0) {
    whole.phases.push_back({work.epoch_ends, offer.epoch_end});
  }
  const auto prediction = predict(offer.machine, nodes, whole);
  if (!prediction) {
    return std::nullopt;
  }
  row.prediction = *prediction;
  if (prediction->priced) {
    row.samples_per_dollar = work.samples / prediction->dollars.value;
  }
  return row;
}

double bound(const Quantity& quantity, bool surely) {
  return surely ? quantity.high : quantity.value;
}

// By cost, then time: whoever is faster than all cheaper ones is on the front.
std::vector<size_t> find_front(const std::vector<PlanRow>& rows) {
  std::vector<size_t> order;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].prediction.priced) {
      order.push_back(i);
    }
  }
  std::ranges::sort(order, {}, [&](size_t i) {
    const Prediction& one = rows[i].prediction;
    return std::tuple(one.dollars.value, one.seconds.value, i);
  });
  std::vector<size_t> front;
  double shortest = std::numeric_limits<double>::infinity();
  for (const size_t i : order) {
    if (rows[i].prediction.seconds.value < shortest) {
      shortest = rows[i].prediction.seconds.value;
      front.push_back(i);
    }
  }
  return front;
}

std::string row_text(const PlanRow& row, std::span<const PlanOffer> offers) {
  const Prediction& prediction = row.prediction;
  return fmt::format(
      "{} x {} ({}{})",
      row.nodes,
      offers[row.offer].machine.name,
      format_duration(from_seconds(prediction.seconds.value)),
      prediction.priced
          ? ", " + format_money(Money::from_dollars(prediction.dollars.value))
          : "");
}

const PlanRow& fastest_of_all(const Plan& plan) {
  return *std::ranges::min_element(plan.rows, {}, [](const PlanRow& row) {
    return row.prediction.seconds.value;
  });
}

}  // namespace

Plan make_plan(
    std::span<const PlanOffer> offers,
    const PlanWork& work,
    const PlanLimits& limits) {
  Plan plan;
  for (size_t i = 0; i < offers.size(); ++i) {
    for (int nodes = 1; nodes <= offers[i].most_nodes; ++nodes) {
      if (auto row = make_row(offers[i], nodes, work)) {
        row->offer = i;
        plan.rows.push_back(*row);
      }
    }
  }
  for (const size_t i : plan.front = find_front(plan.rows)) {
    plan.rows[i].on_front = true;
  }
  const auto better = [&](std::optional<size_t> best, size_t i, auto value) {
    return !best || value(plan.rows[i]) < value(plan.rows[*best]);
  };
  const auto dollars = [](const PlanRow& row) {
    return std::pair(
        row.prediction.dollars.value, row.prediction.seconds.value);
  };
  const auto seconds = [](const PlanRow& row) {
    return std::pair(
        row.prediction.seconds.value, row.prediction.dollars.value);
  };
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    PlanRow& row = plan.rows[i];
    row.in_time =
        !limits.max_seconds ||
        bound(row.prediction.seconds, limits.surely) <= *limits.max_seconds;
    row.in_budget =
        !limits.budget ||
        (row.prediction.priced &&
         bound(row.prediction.dollars, limits.surely) <= *limits.budget);
    if (!row.in_time || !row.in_budget) {
      continue;
    }
    if (row.prediction.priced && better(plan.cheapest, i, dollars)) {
      plan.cheapest = i;
    }
    if (better(plan.fastest, i, seconds)) {
      plan.fastest = i;
    }
  }
  return plan;
}

std::string plan_verdict(
    const Plan& plan,
    std::span<const PlanOffer> offers,
    const PlanLimits& limits) {
  if (plan.rows.empty()) {
    return "nothing can be predicted: no machine has a measured iteration";
  }
  if (plan.fastest && !plan.cheapest) {
    return fmt::format(
        "take {}: the fastest; which is the cheapest is not known without "
        "prices",
        row_text(plan.rows[*plan.fastest], offers));
  }
  if (plan.cheapest) {
    const std::string cheapest =
        "take " + row_text(plan.rows[*plan.cheapest], offers);
    if (plan.fastest == plan.cheapest) {
      return cheapest + ": the cheapest and the fastest";
    }
    return fmt::format(
        "{}: the cheapest; the fastest is {}",
        cheapest,
        row_text(plan.rows[*plan.fastest], offers));
  }
  // Nothing fits: what comes nearest to each limit.
  std::string text = "nothing fits";
  if (limits.max_seconds) {
    text += fmt::format(
        "; the fastest of all is {} where {} are allowed",
        row_text(fastest_of_all(plan), offers),
        format_duration(from_seconds(*limits.max_seconds)));
  }
  if (limits.budget && plan.front.empty()) {
    text += "; no machine has a price to hold against the budget";
  } else if (limits.budget) {
    const size_t i = plan.front.front();
    text += fmt::format(
        "; the cheapest of all is {} where {} are allowed",
        row_text(plan.rows[i], offers),
        format_money(Money::from_dollars(*limits.budget)));
  }
  return text;
}

}  // namespace lockstep::economics
