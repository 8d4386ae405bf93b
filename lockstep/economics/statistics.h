#pragma once

// Statistics of repeats and iterations: means, variances, Student's t, and the
// confidence intervals of a mean and of a ratio of two means. Pure values, no
// clock, no files. What cannot be known (one value has no variance) is none,
// never a made-up number. Values that are not finite are the caller's to leave
// out.

#include <cstddef>
#include <optional>
#include <span>

namespace lockstep::economics {

// Count, mean and variance of values taken one by one (Welford), exact enough
// for means that are large against their spread. Two can be merged.
class Moments {
 public:
  Moments() = default;
  explicit Moments(std::span<const double> values);
  void add(double value);
  void merge(const Moments& other);

  size_t count() const { return count_; }
  double mean() const { return mean_; }  // 0 without a value
  // Unbiased (n - 1); none with fewer than two values.
  std::optional<double> variance() const;
  // Of the mean: sqrt(variance / n).
  std::optional<double> standard_error() const;

 private:
  size_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // sum of squared distances from the mean
};

// P(T <= t) for Student's t with `degrees` of freedom, above 0; a large number
// of degrees gives the normal distribution.
double student_t_cdf(double t, double degrees);
// The t with P(T <= t) = probability, for 0 < probability < 1.
double student_t_quantile(double probability, double degrees);

inline constexpr double kConfidence = 0.95;

struct Interval {
  double low = 0;
  double high = 0;
};

// Half the width of the two-sided interval of the mean; none with fewer than
// two values.
std::optional<double> half_width(
    const Moments& moments,
    double confidence = kConfidence);
std::optional<Interval> mean_interval(
    const Moments& moments,
    double confidence = kConfidence);

// The interval of numerator.mean / denominator.mean, two independent samples,
// by Fieller's theorem with the degrees of freedom of Welch and Satterthwaite.
// None with fewer than two values on a side, or when the denominator cannot be
// told from 0: then every ratio is possible.
std::optional<Interval> ratio_interval(
    const Moments& numerator,
    const Moments& denominator,
    double confidence = kConfidence);

}  // namespace lockstep::economics
