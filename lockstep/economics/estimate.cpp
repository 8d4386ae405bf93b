#include "lockstep/economics/estimate.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lockstep::economics {
namespace {

bool is_usable(const Block& block) {
  return std::isfinite(block.seconds) && block.seconds > 0 &&
         std::isfinite(block.iterations) && block.iterations > 0;
}

}  // namespace

Interval Estimate::interval(double z) const {
  const double factor = std::exp(z * spread);
  return {mean / factor, mean * factor};
}

std::optional<Estimate> estimate(
    std::span<const Block> blocks,
    const Caution& caution) {
  double count = 0;
  double sum = 0;
  double logs = 0;
  double used = 0;
  for (const Block& block : blocks) {
    if (is_usable(block)) {
      count += block.iterations;
      sum += block.iterations * block.seconds;
      logs += block.iterations * std::log(block.seconds);
      used += 1;
    }
  }
  if (used == 0) {
    return std::nullopt;
  }
  const double middle = logs / count;
  const double mean = sum / count;
  // The larger of the two: logarithms see values far below the others, shares
  // of the mean see those far above.
  double log_squares = 0;
  double mean_squares = 0;
  for (const Block& block : blocks) {
    if (is_usable(block)) {
      const double apart = std::log(block.seconds) - middle;
      const double share = block.seconds / mean - 1;
      log_squares += block.iterations * apart * apart;
      mean_squares += block.iterations * share * share;
    }
  }
  const double squares = std::max(log_squares, mean_squares);
  const double variance =
      (caution.weight * caution.spread * caution.spread + squares) /
      (caution.weight + used - 1);
  return Estimate{
      .iterations = count,
      .mean = mean,
      .spread = std::sqrt(variance / count + caution.floor * caution.floor)};
}

std::optional<Estimate> estimate(
    std::span<const double> seconds,
    const Caution& caution) {
  std::vector<Block> blocks;
  blocks.reserve(seconds.size());
  for (const double one : seconds) {
    blocks.push_back({1, one});
  }
  return estimate(std::span<const Block>(blocks), caution);
}

}  // namespace lockstep::economics
