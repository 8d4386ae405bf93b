#include "lockstep/economics/predict.h"

#include <algorithm>
#include <cmath>

namespace lockstep::economics {
namespace {

constexpr double kSecondsPerHour = 3600;
// Interruptions that eat more than this leave no end in sight.
constexpr double kMostLost = 0.95;

// Iterations that get longer by a share of the first each, on average over all.
double drift_factor(const WorkPhase& phase) {
  const double whole = phase.drift * phase.iterations / 2;
  return std::max(1 + whole, 0.1);
}

Quantity phase_seconds(const WorkPhase& phase, double z) {
  const Interval interval = phase.iteration.interval(z);
  const double factor = drift_factor(phase);
  return {
      phase.iterations * phase.iteration.mean,
      phase.iterations * interval.low * std::min(factor, 1.0),
      phase.iterations * interval.high * std::max(factor, 1.0)};
}

// Work done again: each second of work brings rate x lost seconds more.
double with_interruptions(double seconds, const Machine& machine, int nodes) {
  const double share = machine.interruptions_per_hour * nodes *
                       machine.lost_per_interruption / kSecondsPerHour;
  return seconds / (1 - std::min(share, kMostLost));
}

}  // namespace

double billed_seconds(double seconds, const Billing& billing) {
  const double paid = std::max(seconds, billing.minimum);
  if (billing.unit <= 0) {
    return paid;
  }
  // A hair above a whole number of units is rounding, not another unit.
  return std::ceil(paid / billing.unit - 1e-9) * billing.unit;
}

std::optional<Prediction>
predict(const Machine& machine, int nodes, const Work& work, double z) {
  double iterations = 0;
  Quantity training;
  for (const WorkPhase& phase : work.phases) {
    if (!(phase.iterations >= 0) || !(phase.iteration.mean > 0)) {
      return std::nullopt;
    }
    iterations += phase.iterations;
    const Quantity one = phase_seconds(phase, z);
    training.value += one.value;
    training.low += one.low;
    training.high += one.high;
  }
  if (iterations <= 0 || nodes < 1) {
    return std::nullopt;
  }
  const double before = machine.boot + machine.setup;
  const auto whole = [&](double trained) {
    return before +
           with_interruptions(work.init + trained + work.end, machine, nodes);
  };
  Prediction prediction;
  prediction.seconds = {
      whole(training.value), whole(training.low), whole(training.high)};
  const auto cost = [&](double seconds) {
    return billed_seconds(seconds, machine.billing) / kSecondsPerHour *
           machine.dollars_per_hour * nodes;
  };
  prediction.priced = machine.dollars_per_hour > 0;
  prediction.dollars = {
      cost(prediction.seconds.value),
      cost(prediction.seconds.low),
      cost(prediction.seconds.high)};
  return prediction;
}

}  // namespace lockstep::economics
