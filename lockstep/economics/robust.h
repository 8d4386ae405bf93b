#pragma once

// Statistics that a few wild values do not move: median, spread, slope, and
// whether there is a trend at all. Pure; of nothing they are 0.

#include <span>

namespace lockstep::economics {

double median(std::span<const double> values);

// The standard deviation of the noise around a level that may jump: from the
// differences of neighbours (their median, scaled for the normal case).
double difference_noise(std::span<const double> values);

// Slope by index: the median of the slopes of pairs (Theil and Sen). Past 400
// values, of as many that are spread evenly.
double theil_sen(std::span<const double> values);

// Mann and Kendall: how many standard deviations the order of the values is
// away from no trend; above 0 they rise. Equal values count as no order.
double trend(std::span<const double> values);

}  // namespace lockstep::economics
