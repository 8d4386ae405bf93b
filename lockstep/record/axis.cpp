#include "lockstep/record/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::record {

namespace {

// A range this much smaller than its numbers has no extent: so few digits are
// left of its ticks.
constexpr double kFinest = 1e-9;
// What is smaller is 0: near the least double steps vanish in rounding.
constexpr double kLeast = 1e-300;
// Up to here labels tell whole numbers apart.
constexpr double kMostWhole = 1e12;
constexpr double kMostTicks = 1000;

double round_step(double rough) {
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (rough <= factor * power * (1 + 1e-9)) {
      return factor * power;
    }
  }
  return 10 * power;
}

// Digits after the point that a multiple of `step` needs.
int decimals(double step) {
  int count = 0;
  while (count < 9 && std::abs(step - std::round(step)) > 1e-6 * step) {
    step *= 10;
    ++count;
  }
  return count;
}

// That tell ticks up to `most` apart.
int significant_digits(double most, double step) {
  const double digits = std::ceil(std::log10(most / step)) + 2;
  return digits > 3 ? static_cast<int>(std::min(digits, 17.0)) : 3;
}

std::vector<std::string> label_all(
    const std::vector<double>& ticks,
    double step) {
  double most = 0;
  for (const double tick : ticks) {
    most = std::max(most, std::abs(tick));
  }
  struct Scale {
    double factor;
    const char* suffix;
  };
  static constexpr std::array kScales = {
      Scale{1e12, "T"},
      Scale{1e9, "G"},
      Scale{1e6, "M"},
      Scale{1e3, "k"},
  };
  std::vector<std::string> labels;
  labels.reserve(ticks.size());
  Scale scale{1, ""};
  for (const Scale& candidate : kScales) {
    if (scale.factor == 1 && most >= candidate.factor * 10 - 1e-9) {
      scale = candidate;
    }
  }
  const bool tiny = most > 0 && most < 1e-3;
  const bool huge = most >= 1e16;
  const int digits = significant_digits(most, step);
  for (const double tick : ticks) {
    if (std::abs(tick) < step * 1e-6) {
      labels.emplace_back("0");
    } else if (tiny || huge) {
      labels.push_back(fmt::format("{:.{}g}", tick, digits));
    } else {
      labels.push_back(
          fmt::format(
              "{:.{}f}{}",
              tick / scale.factor,
              decimals(step / scale.factor),
              scale.suffix));
    }
  }
  return labels;
}

// Multiples of `step`. Where they could not be told apart there are none.
std::vector<double> ticks_between(double low, double high, double step) {
  std::vector<double> ticks;
  const double first = std::ceil(low / step - 1e-6);
  const double last = std::floor(high / step + 1e-6);
  const double count = last - first + 1;
  if (!(count > 0 && count <= kMostTicks)) {
    return ticks;
  }
  // Counted by an integer: beyond 2^53 a double plus one is itself.
  for (int i = 0; i < static_cast<int>(count); ++i) {
    ticks.push_back((first + i) * step);
  }
  return ticks;
}

// What a flat line has above and below it. One step where steps can be seen.
double room_around(double size, bool whole) {
  if (whole && size < kMostWhole) {
    return 1;
  }
  return size > 0 ? size * 0.1 : 0.5;
}

}  // namespace

double Axis::position(double value) const {
  return logarithmic ? (std::log10(value) - std::log10(low)) /
                           (std::log10(high) - std::log10(low))
                     : (value - low) / (high - low);
}

Axis linear_axis(double low, double high, int wanted, bool widen, bool whole) {
  if (std::max(std::abs(low), std::abs(high)) < kLeast) {
    low = high = 0;
  }
  // A flat line sits in the middle of some room around it.
  const double size = std::max(std::abs(low), std::abs(high));
  if (!(high - low > size * kFinest)) {
    const double room = room_around(size, whole);
    low -= low == 0 ? 0 : room;
    high += room;
  }
  Axis axis;
  double step = round_step((high - low) / std::max(wanted, 1));
  if (whole && step < 5) {
    step = std::max(std::floor(step), 1.0);
  }
  if (widen) {
    // To the next tick when it is near, else by a little air.
    constexpr double kNear = 0.4;
    constexpr double kAir = 0.12;
    const double down = std::floor(low / step + 1e-6) * step;
    const double up = std::ceil(high / step - 1e-6) * step;
    const bool crosses = low >= 0 && low - kAir * step < 0;
    low = crosses ? 0 : low - down <= kNear * step ? down : low - kAir * step;
    high = up - high <= kNear * step ? up : high + kAir * step;
  }
  axis.low = low;
  axis.high = high;
  axis.ticks = ticks_between(low, high, step);
  axis.labels = label_all(axis.ticks, step);
  return axis;
}

Axis log_axis(double low, double high) {
  Axis axis;
  axis.logarithmic = true;
  // Both ends may move by kFinest to a tick, which must not be the same one.
  if (!(high > low * (1 + 10 * kFinest))) {
    low /= 2;
    high *= 2;
  }
  // Not of the quotient: it may be beyond what a double holds.
  const double decades = std::log10(high) - std::log10(low);
  std::vector<double> factors = {1};
  if (decades < 1) {
    factors = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  } else if (decades < 3.5) {
    factors = {1, 2, 5};
  }
  const int skip = std::max(1, static_cast<int>(std::ceil(decades / 7)));
  const int first = static_cast<int>(std::floor(std::log10(low)));
  const int last = static_cast<int>(std::ceil(std::log10(high)));
  std::vector<double> all;
  for (int power = first; power <= last; power += skip) {
    for (const double factor : factors) {
      all.push_back(factor * std::pow(10.0, power));
    }
  }
  // Down and up to the nearest tick, so that both ends are labelled.
  axis.low = low;
  axis.high = high;
  for (const double tick : all) {
    if (tick <= low * (1 + 1e-9)) {
      axis.low = tick;
    }
  }
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (*it >= high * (1 - 1e-9)) {
      axis.high = *it;
    }
  }
  for (const double tick : all) {
    if (tick >= axis.low * (1 - 1e-9) && tick <= axis.high * (1 + 1e-9)) {
      axis.ticks.push_back(tick);
      const bool plain = tick >= 9e-4 && tick < 9e4;
      axis.labels.push_back(
          plain ? fmt::format("{:.6g}", tick) : fmt::format("{:.0e}", tick));
    }
  }
  return axis;
}

}  // namespace lockstep::record
