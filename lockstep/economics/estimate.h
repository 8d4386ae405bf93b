#pragma once

// What the iterations seen so far tell about all others: a mean and how far it
// can be trusted. Works on logarithms, since iteration times are positive,
// skewed and compared by their ratios. Few values are met with doubt that is
// stated beforehand and fades as values come: an iteration alone may be off by
// a factor of two, and even many never tell the rest of a run better than the
// floor. Pure; values that are not positive and finite are passed over.

#include <optional>
#include <span>

#include "lockstep/economics/statistics.h"

namespace lockstep::economics {

// Iterations in a row of which only the mean is known; one iteration is a
// block of one.
struct Block {
  double iterations = 1;
  double seconds = 0;  // mean of one of them
};

// The doubt before anything is seen. None of it comes from recorded data.
struct Caution {
  double spread = 0.6931471805599453;  // of one iteration: a factor of two
  double weight = 2;                   // counts as so many blocks seen
  double floor = 0.05;  // what early iterations cannot say about later ones
};

struct Estimate {
  double iterations = 0;  // seen
  double mean = 0;        // seconds an iteration, arithmetic
  double spread = 0;      // standard deviation of the logarithm of the mean
  // From mean / e^(z spread) to mean x e^(z spread).
  Interval interval(double z = 1.96) const;
};

// With n iterations in B blocks: v = (w p^2 + S) / (w + B - 1), where p is the
// prior spread, w its weight, and S the larger of sum n_b (ln x_b - m)^2, m the
// weighted mean of the logarithms, and sum n_b (x_b / mean - 1)^2;
// spread^2 = v / n + floor^2. None without a usable block.
std::optional<Estimate> estimate(
    std::span<const Block> blocks,
    const Caution& caution = {});

// The same of single iterations.
std::optional<Estimate> estimate(
    std::span<const double> seconds,
    const Caution& caution = {});

}  // namespace lockstep::economics
