#include "lockstep/economics/phases.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "lockstep/economics/robust.h"

namespace lockstep::economics {
namespace {

constexpr size_t kMostPoints = 256;
// Steps smaller than this are never noise worth a phase.
constexpr double kLeastNoise = 0.005;

// Sum of the distances from the median of values that come one by one.
class RunningSpread {
 public:
  void add(double value) {
    if (low_.empty() || value <= low_.top()) {
      low_.push(value);
      low_sum_ += value;
    } else {
      high_.push(value);
      high_sum_ += value;
    }
    if (low_.size() > high_.size() + 1) {
      low_sum_ -= low_.top();
      high_sum_ += low_.top();
      high_.push(low_.top());
      low_.pop();
    } else if (high_.size() > low_.size()) {
      high_sum_ -= high_.top();
      low_sum_ += high_.top();
      low_.push(high_.top());
      high_.pop();
    }
  }
  double sum() const {
    const double middle = low_.top();
    return middle * (static_cast<double>(low_.size()) -
                     static_cast<double>(high_.size())) -
           low_sum_ + high_sum_;
  }

 private:
  std::priority_queue<double> low_;
  std::priority_queue<double, std::vector<double>, std::greater<>> high_;
  double low_sum_ = 0;
  double high_sum_ = 0;
};

struct Cut {
  std::vector<size_t> ends;
  double cost = 0;
};

// The cheapest way to cut, each piece at `price` (the first is free).
Cut cheapest_cut(std::span<const double> logs, double price, size_t shortest) {
  const size_t n = logs.size();
  std::vector<double> best(n + 1, std::numeric_limits<double>::infinity());
  std::vector<size_t> from(n + 1, 0);
  best[0] = 0;
  for (size_t begin = 0; begin < n; ++begin) {
    if (!std::isfinite(best[begin])) {
      continue;
    }
    RunningSpread spread;
    const double before = best[begin] + (begin == 0 ? 0 : price);
    for (size_t end = begin + 1; end <= n; ++end) {
      spread.add(logs[end - 1]);
      if (begin > 0 && end - begin < shortest) {
        continue;
      }
      const double cost = before + spread.sum();
      if (cost < best[end]) {
        best[end] = cost;
        from[end] = begin;
      }
    }
  }
  Cut cut;
  cut.cost = best[n];
  for (size_t end = n; end > 0; end = from[end]) {
    cut.ends.insert(cut.ends.begin(), end);
  }
  return cut;
}

// What a straight line leaves over.
double line_cost(std::span<const double> logs) {
  const double slope = theil_sen(logs);
  std::vector<double> rest(logs.begin(), logs.end());
  for (size_t i = 0; i < rest.size(); ++i) {
    rest[i] -= slope * static_cast<double>(i);
  }
  const double middle = median(rest);
  double sum = 0;
  for (const double one : rest) {
    sum += std::abs(one - middle);
  }
  return sum;
}

double
median_between(std::span<const double> values, size_t begin, size_t end) {
  return median(values.subspan(begin, end - begin));
}

}  // namespace

std::vector<LevelPhase> find_phases(
    std::span<const double> seconds,
    const PhaseOptions& options) {
  if (seconds.empty()) {
    return {};
  }
  const size_t stride = (seconds.size() + kMostPoints - 1) / kMostPoints;
  std::vector<double> logs;
  for (size_t i = 0; i < seconds.size(); i += stride) {
    logs.push_back(
        std::log(
            median_between(seconds, i, std::min(i + stride, seconds.size()))));
  }
  const double noise = std::max(difference_noise(logs), kLeastNoise);
  const double price =
      options.price * noise * std::log(static_cast<double>(logs.size()) + 1);
  const Cut cut = cheapest_cut(logs, price, options.shortest);
  std::vector<size_t> ends = cut.ends;
  if (ends.size() > 2 && line_cost(logs) + price < cut.cost) {
    ends = {logs.size()};
  }
  // Neighbours that hardly differ are one.
  std::vector<LevelPhase> phases;
  size_t begin = 0;
  for (const size_t end : ends) {
    LevelPhase phase;
    phase.begin = begin * stride;
    phase.end = std::min(end * stride, seconds.size());
    phase.median = median_between(seconds, phase.begin, phase.end);
    if (!phases.empty() &&
        std::abs(std::log(phase.median / phases.back().median)) <
            options.least_step) {
      phases.back().end = phase.end;
      phases.back().median =
          median_between(seconds, phases.back().begin, phase.end);
    } else {
      phases.push_back(phase);
    }
    begin = end;
  }
  return phases;
}

}  // namespace lockstep::economics
