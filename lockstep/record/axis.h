#pragma once

// Round numbers for an axis: where its ticks stand and what they say. Pure,
// private to record/.

#include <string>
#include <vector>

namespace lockstep::record {

struct Axis {
  double low = 0;
  double high = 1;
  bool logarithmic = false;
  std::vector<double> ticks;
  std::vector<std::string> labels;

  // 0 at low, 1 at high.
  double position(double value) const;
};

// About `wanted` ticks at multiples of 1, 2, 2.5 or 5. With `widen` the range
// grows to the next tick or gets some air. A range without extent gets one, and
// so does one that is a billionth of its numbers. With `whole` no tick stands
// between whole numbers. Any finite numbers up to 1e300 give high > low.
Axis linear_axis(
    double low,
    double high,
    int wanted,
    bool widen,
    bool whole = false);

// Ticks at powers of ten, with 2 and 5 between where there are few. low > 0;
// both between 1e-300 and 1e300.
Axis log_axis(double low, double high);

}  // namespace lockstep::record
