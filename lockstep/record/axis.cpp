#include "lockstep/record/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace lockstep::record {

namespace {

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
  for (const double tick : ticks) {
    if (std::abs(tick) < step * 1e-6) {
      labels.emplace_back("0");
    } else if (tiny || huge) {
      labels.push_back(fmt::format("{:.3g}", tick));
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

}  // namespace

double Axis::position(double value) const {
  return logarithmic ? (std::log10(value) - std::log10(low)) /
                           (std::log10(high) - std::log10(low))
                     : (value - low) / (high - low);
}

Axis linear_axis(double low, double high, int wanted, bool widen, bool whole) {
  // A flat line sits in the middle of some room around it.
  const double size = std::max(std::abs(low), std::abs(high));
  if (!(high - low > size * 1e-9)) {
    const double room = whole ? 1 : size > 0 ? size * 0.1 : 0.5;
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
  const double first = std::ceil(low / step - 1e-6);
  const double last = std::floor(high / step + 1e-6);
  for (double i = first; i <= last; ++i) {
    axis.ticks.push_back(i * step);
  }
  axis.labels = label_all(axis.ticks, step);
  return axis;
}

Axis log_axis(double low, double high) {
  Axis axis;
  axis.logarithmic = true;
  if (!(high > low)) {
    low /= 2;
    high *= 2;
  }
  const double decades = std::log10(high / low);
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
