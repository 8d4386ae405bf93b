#include "lockstep/parallel/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

namespace lockstep::parallel {
namespace {

// A change must exceed so many standard errors of the medians.
constexpr double kSure = 3;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half]
                                : (values[half - 1] + values[half]) / 2;
}

struct Seen {
  double seconds = 0;  // median
  double error = 0;    // of it, relative
};

Seen look(const std::deque<std::vector<double>>& steps, size_t rank) {
  std::vector<double> values;
  for (const auto& step : steps) {
    values.push_back(step[rank]);
  }
  Seen seen;
  seen.seconds = median(values);
  double away = 0;
  for (const double value : values) {
    away += std::abs(value - seen.seconds);
  }
  // Of a normal: deviation = 1.25 x mean distance, and a median's error is 1.25
  // of a mean's.
  const auto count = static_cast<double>(values.size());
  seen.error = 1.25 * 1.25 * away / count / (seen.seconds * std::sqrt(count));
  return seen;
}

}  // namespace

std::vector<int64_t> split_batch(
    int64_t batch,
    std::span<const double> speeds) {
  const double sum = std::accumulate(speeds.begin(), speeds.end(), 0.);
  std::vector<int64_t> shares;
  int64_t given = 0;
  for (const double speed : speeds) {
    const double exact = static_cast<double>(batch) * speed / sum;
    shares.push_back(std::max<int64_t>(1, static_cast<int64_t>(exact)));
    given += shares.back();
  }
  const auto time = [&](size_t rank, int64_t samples) {
    return static_cast<double>(samples) / speeds[rank];
  };
  for (; given < batch; ++given) {
    size_t best = 0;
    for (size_t rank = 1; rank < shares.size(); ++rank) {
      if (time(rank, shares[rank] + 1) < time(best, shares[best] + 1)) {
        best = rank;
      }
    }
    ++shares[best];
  }
  // Ranks that got their one sample against their speed: others give it.
  for (; given > batch; --given) {
    size_t worst = shares.size();
    for (size_t rank = 0; rank < shares.size(); ++rank) {
      if (shares[rank] > 1 &&
          (worst == shares.size() ||
           time(rank, shares[rank]) > time(worst, shares[worst]))) {
        worst = rank;
      }
    }
    --shares[worst];
  }
  return shares;
}

Balance::Balance(int64_t batch, size_t ranks, const BalanceOptions& options)
    : batch_(batch), options_(options), unsettled_(options.settle) {
  if (ranks < 1 || batch < static_cast<int64_t>(ranks)) {
    throw std::invalid_argument(
        fmt::format(
            "a global batch of {} samples cannot be shared by {} ranks: each "
            "needs one",
            batch,
            ranks));
  }
  shares_ = split_batch(batch, std::vector<double>(ranks, 1.));
}

bool Balance::observe(std::span<const double> seconds) {
  const bool good = std::all_of(seconds.begin(), seconds.end(), [](double s) {
    return std::isfinite(s) && s > 0;
  });
  if (!good || seconds.size() != shares_.size()) {
    return false;
  }
  if (unsettled_ > 0) {
    --unsettled_;
    return false;
  }
  seen_.emplace_back(seconds.begin(), seconds.end());
  if (seen_.size() > static_cast<size_t>(options_.window)) {
    seen_.pop_front();
  }
  if (seen_.size() < static_cast<size_t>(options_.window)) {
    return false;
  }
  std::vector<double> speeds;
  double error = 0;  // the largest
  double now = 0;
  std::vector<Seen> ranks;
  for (size_t rank = 0; rank < shares_.size(); ++rank) {
    ranks.push_back(look(seen_, rank));
    speeds.push_back(static_cast<double>(shares_[rank]) / ranks.back().seconds);
    error = std::max(error, ranks.back().error);
    now = std::max(now, ranks.back().seconds);
  }
  auto wanted = split_batch(batch_, speeds);
  double then = 0;
  for (size_t rank = 0; rank < wanted.size(); ++rank) {
    then = std::max(then, static_cast<double>(wanted[rank]) / speeds[rank]);
  }
  if (1 - then / now <= std::max(options_.gain, kSure * error)) {
    return false;
  }
  shares_ = std::move(wanted);
  seen_.clear();
  unsettled_ = options_.settle;
  return true;
}

}  // namespace lockstep::parallel
