#include "lockstep/economics/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace lockstep::economics {
namespace {

// Continued fraction of the incomplete beta function (modified Lentz).
double beta_fraction(double a, double b, double x) {
  constexpr int kMost = 500;
  constexpr double kTiny = 1e-300;
  constexpr double kEnough = 1e-15;
  const auto kept = [](double value) {
    return std::abs(value) < kTiny ? kTiny : value;
  };
  double c = 1;
  double d = 1 / kept(1 - (a + b) * x / (a + 1));
  double result = d;
  for (int i = 1; i <= kMost; ++i) {
    const double m = i;
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / kept(1 + even * d);
    c = kept(1 + even / c);
    result *= d * c;
    const double odd =
        -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / kept(1 + odd * d);
    c = kept(1 + odd / c);
    const double change = d * c;
    result *= change;
    if (std::abs(change - 1) < kEnough) {
      break;
    }
  }
  return result;
}

// std::lgamma writes the global signgam; our arguments are positive.
double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

double regularised_beta(double a, double b, double x) {
  if (x <= 0) {
    return 0;
  }
  if (x >= 1) {
    return 1;
  }
  const double front = std::exp(
      log_gamma(a + b) - log_gamma(a) - log_gamma(b) + a * std::log(x) +
      b * std::log1p(-x));
  // The fraction converges quickly on one side of the mean only.
  return x < (a + 1) / (a + b + 2) ? front * beta_fraction(a, b, x) / a
                                   : 1 - front * beta_fraction(b, a, 1 - x) / b;
}

// Beyond this the t distribution is the normal one to twelve digits.
constexpr double kNormalFrom = 1e12;

}  // namespace

Moments::Moments(std::span<const double> values) {
  for (const double value : values) {
    add(value);
  }
}

void Moments::add(double value) {
  ++count_;
  const double before = value - mean_;
  mean_ += before / static_cast<double>(count_);
  squares_ += before * (value - mean_);
}

void Moments::merge(const Moments& other) {
  if (other.count_ == 0) {
    return;
  }
  const auto ours = static_cast<double>(count_);
  const auto theirs = static_cast<double>(other.count_);
  const double apart = other.mean_ - mean_;
  squares_ += other.squares_ + apart * apart * ours * theirs / (ours + theirs);
  mean_ += apart * theirs / (ours + theirs);
  count_ += other.count_;
}

std::optional<double> Moments::variance() const {
  if (count_ < 2) {
    return std::nullopt;
  }
  return squares_ / static_cast<double>(count_ - 1);
}

std::optional<double> Moments::standard_error() const {
  const auto spread = variance();
  if (!spread) {
    return std::nullopt;
  }
  return std::sqrt(*spread / static_cast<double>(count_));
}

double student_t_cdf(double t, double degrees) {
  if (degrees >= kNormalFrom) {
    return 0.5 * std::erfc(-t / std::numbers::sqrt2);
  }
  // Half the mass beyond |t|, from the side that keeps its digits.
  const double tail =
      0.5 * regularised_beta(degrees / 2, 0.5, degrees / (degrees + t * t));
  return t > 0 ? 1 - tail : tail;
}

double student_t_quantile(double probability, double degrees) {
  if (probability == 0.5) {
    return 0;
  }
  if (probability > 0.5) {
    return -student_t_quantile(1 - probability, degrees);
  }
  // The lower tail: widen until it is enclosed, then halve.
  double low = -1;
  while (student_t_cdf(low, degrees) > probability && low > -1e300) {
    low *= 2;
  }
  double high = low == -1 ? 0 : low / 2;
  for (int i = 0; i < 200; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle == low || middle == high) {
      break;
    }
    (student_t_cdf(middle, degrees) < probability ? low : high) = middle;
  }
  return low + (high - low) / 2;
}

std::optional<double> half_width(const Moments& moments, double confidence) {
  const auto error = moments.standard_error();
  if (!error) {
    return std::nullopt;
  }
  const double t = student_t_quantile(
      0.5 + confidence / 2, static_cast<double>(moments.count() - 1));
  return t * *error;
}

std::optional<Interval> mean_interval(
    const Moments& moments,
    double confidence) {
  const auto half = half_width(moments, confidence);
  if (!half) {
    return std::nullopt;
  }
  return Interval{moments.mean() - *half, moments.mean() + *half};
}

std::optional<Interval> ratio_interval(
    const Moments& numerator,
    const Moments& denominator,
    double confidence) {
  const auto above = numerator.standard_error();
  const auto below = denominator.standard_error();
  if (!above || !below || denominator.mean() == 0) {
    return std::nullopt;
  }
  const double ratio = numerator.mean() / denominator.mean();
  const double first = *above * *above;
  const double second = ratio * ratio * *below * *below;
  if (first + second <= 0) {
    return Interval{ratio, ratio};
  }
  const double degrees =
      (first + second) * (first + second) /
      (first * first / static_cast<double>(numerator.count() - 1) +
       second * second / static_cast<double>(denominator.count() - 1));
  const double t = student_t_quantile(0.5 + confidence / 2, degrees);
  const double share = t * *below / denominator.mean();
  const double g = share * share;
  if (g >= 1) {
    return std::nullopt;
  }
  const double half = t / std::abs(denominator.mean()) *
                      std::sqrt(first * (1 - g) + second) / (1 - g);
  const double middle = ratio / (1 - g);
  return Interval{middle - half, middle + half};
}

}  // namespace lockstep::economics
