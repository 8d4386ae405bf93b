#include "lockstep/economics/scaling.h"

#include <algorithm>
#include <cmath>

namespace lockstep::economics {
namespace {

double ring_share(double nodes) {
  return 2 * (nodes - 1) / nodes;
}

struct Sums {
  double vv = 0, vl = 0, ll = 0, vy = 0, ly = 0;
  int counts = 0;  // node counts above 1
};

}  // namespace

Estimate ScalingModel::iteration(int nodes) const {
  const double n = std::max(nodes, 1);
  const double seconds = (strong ? compute / n : compute) +
                         volume * ring_share(n) + latency * (n - 1);
  const double doublings = std::max(0.0, std::log2(n / measured));
  const bool unseen = measured <= 1;
  const double doubt = doublings * (unseen ? kDoubtUnseen : kDoubtPerDoubling);
  return {
      .iterations = 0, .mean = seconds, .spread = std::hypot(spread, doubt)};
}

std::optional<ScalingModel> fit_scaling(
    std::span<const Split> splits,
    bool strong) {
  ScalingModel model;
  model.strong = strong;
  double compute = 0;
  double weight = 0;
  double spread = 0;
  Sums sums;
  int last = 1;
  for (const Split& split : splits) {
    if (!(split.compute > 0) || split.nodes < 1) {
      continue;
    }
    const double n = split.nodes;
    compute += strong ? split.compute * n : split.compute;
    weight += 1;
    spread = std::max(spread, split.spread);
    model.measured = std::max(model.measured, split.nodes);
    if (split.nodes > 1) {
      const double v = ring_share(n);
      const double l = n - 1;
      sums.vv += v * v;
      sums.vl += v * l;
      sums.ll += l * l;
      sums.vy += v * split.communication;
      sums.ly += l * split.communication;
      sums.counts += split.nodes != last ? 1 : 0;
      last = split.nodes;
    }
  }
  if (weight == 0) {
    return std::nullopt;
  }
  model.compute = compute / weight;
  model.spread = spread;
  if (sums.counts == 0) {
    return model;
  }
  const double volume_alone = std::max(0.0, sums.vy / sums.vv);
  const double determinant = sums.vv * sums.ll - sums.vl * sums.vl;
  if (sums.counts == 1 || determinant <= 1e-12 * sums.vv * sums.ll) {
    model.volume = volume_alone;
    return model;
  }
  model.volume = (sums.vy * sums.ll - sums.ly * sums.vl) / determinant;
  model.latency = (sums.ly * sums.vv - sums.vy * sums.vl) / determinant;
  if (model.latency < 0) {
    model.latency = 0;
    model.volume = volume_alone;
  } else if (model.volume < 0) {
    model.volume = 0;
    model.latency = std::max(0.0, sums.ly / sums.ll);
  }
  return model;
}

}  // namespace lockstep::economics
