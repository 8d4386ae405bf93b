#include "lockstep/train/batch_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <limits>
#include <vector>

#include "lockstep/train/error.h"

namespace lockstep::train {
namespace {

constexpr int64_t kFirst = 8;
constexpr int64_t kFine = 64;   // above, sizes are multiples of
constexpr int64_t kCoarse = 8;  // this: GPUs like them, and few are left out
// So much of the room that samples can fill is near enough to end the search.
constexpr double kFull = .98;
// While peaks hardly differ, the next size is so many times the last: eight
// samples of small images are nothing to a machine's memory.
constexpr int64_t kLeap = 4;
// What the line from before the trials is too steep by, at most.
constexpr double kSlack = .01;
// What peaks differ by from time to time, of what samples take; at most half
// the margin goes for it.
constexpr double kNoise = .05;
constexpr int kBack = 3;  // trials kept for stepping back
constexpr int kFew = 3;   // trials of each mode but the first, at least

Bytes to_bytes(double count) {
  return Bytes{static_cast<uint64_t>(std::max(0., count))};
}

class Search {
 public:
  Search(
      const std::function<void(int64_t)>& trial,
      MemoryMeter& meter,
      collective::Communicator* group,
      const BatchSearchOptions& options)
      : trial_(trial), meter_(meter), group_(group), options_(options) {
    above_ = options.most + 1;
    limit_ = agreed({static_cast<double>(meter.limit())})[0];
    if (options.limit > 0) {
      limit_ = std::min(limit_, options.limit);
    }
    budget_ = limit_ * (1 - options.margin);
  }

  BatchFit run() {
    int64_t size = std::min(kFirst, options_.most);
    meter_.reset();
    base_ = -agreed({-static_cast<double>(meter_.peak())})[0];
    if (options_.asked) {
      budget_ += std::clamp(
          kNoise * (budget_ - base_), 0., options_.margin / 2 * limit_);
    }
    // Else the first two trials make the line. What is in use before them makes
    // one that is too steep, for trials take more than that by a constant; what
    // it predicts is rather too small.
    if (options_.first > 0 || options_.deadly) {
      points_.push_back({0, base_});
    }
    if (options_.first > 0) {
      size = std::min(options_.first, options_.most);
    } else if (options_.deadly) {
      // Half of it: a trial takes something however small it is.
      size = std::clamp<int64_t>(safe_size() / 2, 1, size);
    }
    const int most_trials =
        options_.max_trials - std::min(kBack, options_.max_trials / 4);
    while (fit_.trials < most_trials) {
      const double peak = try_one(size);
      const bool fits = peak <= budget_;
      if (fits) {
        fit_.batch = size;
        fit_.peak = peak;
      } else {
        above_ = size;
      }
      if (std::isfinite(peak)) {
        points_.push_back({static_cast<double>(size), peak});
      }
      const int64_t gap = above_ - fit_.batch;
      const bool near = fits && peak - base_ >= kFull * (budget_ - base_);
      if (near && size < options_.most && may_reach_most()) {
        size = options_.most;
        continue;
      }
      if (options_.deadly && fit_.batch > 0 && gap > 1 &&
          safe_size() <= fit_.batch) {
        fit_.largest = fit_.peak + options_.estimate > budget_;
        break;
      }
      if (wall_ && fit_.batch > 0 &&
          static_cast<double>(gap) <=
              std::max(1., options_.margin / 2 * fit_.batch)) {
        fit_.largest = true;
        break;
      }
      if (near || gap <= (fit_.batch >= kFine ? kCoarse : 1)) {
        // The most that is allowed need not be a multiple of anything.
        if (near || above_ != options_.most + 1 || gap == 1) {
          fit_.largest = true;
          break;
        }
        size = options_.most;
        continue;
      }
      size = next_size();
    }
    if (wall_ && fit_.batch > 1) {
      step_back();
    }
    fit_.limit = limit_;
    return fit_;
  }

 private:
  struct Point {
    double size;
    double peak;
  };

  // Whether all that is allowed, or was asked for, would still fit.
  bool may_reach_most() const {
    if (above_ <= options_.most) {
      return false;
    }
    const auto most = static_cast<double>(options_.most);
    const double slope = (fit_.peak - base_) / static_cast<double>(fit_.batch);
    return options_.deadly
               ? safe_size() >= options_.most
               : base_ + slope * most <= budget_ + kSlack * (budget_ - base_);
  }

  // The largest that stays below the limit even when a sample takes twice what
  // was estimated, or by the line from before the trials.
  int64_t safe_size() const {
    const double before = base_;
    const bool known = fit_.batch > 0;
    const double peak = known ? fit_.peak : before;
    double sample = 2 * options_.estimate;
    if (known) {
      const double steep = (peak - before) / static_cast<double>(fit_.batch);
      sample = sample > 0 ? std::min(sample, steep) : steep;
    }
    if (sample <= 0) {
      return known ? options_.most : 1;
    }
    const double more = std::max(0., limit_ - peak) / sample;
    return fit_.batch + static_cast<int64_t>(
                            std::min(more, static_cast<double>(options_.most)));
  }

  // There was less memory than the meter said, so it does not see all that
  // counts: what worked, less a margin, is the limit, and the margin comes off
  // that. What is taken has worked as the last trial: less is tried until it
  // does, or until the trials end.
  void step_back() {
    const double worked = fit_.peak;
    limit_ = worked * (1 - options_.margin);
    budget_ = limit_ * (1 - options_.margin);
    const double least = points_.front().peak;
    const double share = (budget_ - least) / std::max(1., worked - least);
    auto size = static_cast<int64_t>(
        points_.front().size +
        share * (static_cast<double>(fit_.batch) - points_.front().size));
    size = std::clamp<int64_t>(size, 1, fit_.batch);
    fit_.batch = 0;
    fit_.peak = 0;
    while (size > 0 && fit_.trials < options_.max_trials) {
      const double peak = try_one(size);
      if (std::isfinite(peak)) {
        fit_.batch = size;
        fit_.peak = peak;
        return;
      }
      size = size * (options_.max_trials - fit_.trials > 2 ? 3 : 2) / 4;
    }
  }

  // The least over all ranks.
  std::vector<double> agreed(std::vector<double> values) const {
    if (group_ != nullptr) {
      group_->all_reduce(
          values.data(),
          values.size(),
          collective::DataType::kFloat64,
          collective::ReduceOp::kMin);
    }
    return values;
  }

  // The peak of the worst rank; infinite when one ran out of memory.
  double try_one(int64_t size) {
    ++fit_.trials;
    meter_.reset();
    double peak = std::numeric_limits<double>::infinity();
    try {
      trial_(size);
      peak = static_cast<double>(meter_.peak()) +
             options_.sample_bytes * static_cast<double>(size);
    } catch (const std::exception& failure) {
      if (!is_out_of_memory(failure)) {
        throw;
      }
    }
    meter_.reset();
    const int signal = options_.stop_signal ? options_.stop_signal() : 0;
    const auto worst = agreed({-peak, signal != 0 ? -1. : 0.});
    if (worst[1] < 0) {
      throw TrainError(
          128 + (signal != 0 ? signal : SIGTERM),
          "stopped while the batch that fits was searched, before step 1");
    }
    peak = -worst[0];
    if (!std::isfinite(peak)) {
      fit_.failed = wall_ ? std::min(fit_.failed, size) : size;
      wall_ = true;
    }
    return peak;
  }

  int64_t next_size() const {
    const int64_t low = fit_.batch;
    int64_t size = 0;
    if (low == 0) {
      return above_ / 2;
    }
    if (const auto guess = predicted(); guess > 0) {
      size = guess;
    } else {
      const int64_t leap = points_.size() < 2 ? 2 : kLeap;
      size = above_ > options_.most ? low * leap : (low + above_) / 2;
    }
    if (options_.deadly) {
      size = std::min(size, safe_size());
    }
    // From a few samples nobody sees thousands well.
    size = std::clamp(size, low + 1, std::min(above_ - 1, low * 16));
    if (size >= kFine && size != options_.most) {
      const int64_t rounded = size / kCoarse * kCoarse;
      size = rounded > low ? rounded : std::min(above_ - 1, rounded + kCoarse);
    }
    return size;
  }

  // Where the line through the last two peaks meets the budget; 0 while the
  // peaks hardly differ, when a guess has just missed, or when memory ended
  // below the budget, wherever that is: then halves are taken.
  int64_t predicted() const {
    const bool missed = above_ <= options_.most && fit_.trials % 2 == 0;
    if (points_.size() < 2 || missed || wall_) {
      return 0;
    }
    // By size: the two largest that were measured.
    auto sorted = points_;
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return a.size < b.size;
    });
    const Point& b = sorted.back();
    const Point& a = sorted[sorted.size() - 2];
    const double rise = b.peak - a.peak;
    if (rise < .005 * (budget_ - base_)) {
      return 0;
    }
    const double size = b.size + (budget_ - b.peak) / rise * (b.size - a.size);
    return static_cast<int64_t>(
        std::clamp(size, 1., static_cast<double>(options_.most)));
  }

  const std::function<void(int64_t)>& trial_;
  MemoryMeter& meter_;
  collective::Communicator* group_;
  const BatchSearchOptions& options_;
  double limit_ = 0;
  double budget_ = 0;
  double base_ = 0;    // in use before the trials, of the rank with most
  bool wall_ = false;  // memory ran out
  int64_t above_ = 0;  // the smallest that is known not to fit
  std::vector<Point> points_;
  BatchFit fit_;
};

}  // namespace

std::string BatchFit::to_string(double margin) const {
  return fmt::format(
      "batch {}: {} of {} a rank ({:.3g}% are kept free), {} trial{}",
      batch,
      format_bytes(to_bytes(peak)),
      format_bytes(to_bytes(limit)),
      std::min(margin, 1 - peak / std::max(1., limit)) * 100,
      trials,
      trials == 1 ? "" : "s");
}

BatchFit find_batch(
    const std::function<void(int64_t)>& trial,
    MemoryMeter& meter,
    collective::Communicator* group,
    const BatchSearchOptions& options) {
  return Search(trial, meter, group, options).run();
}

ModeFit find_mode(
    size_t num_modes,
    const std::function<void(size_t)>& use,
    const std::function<void(int64_t)>& trial,
    MemoryMeter& meter,
    collective::Communicator* group,
    const BatchSearchOptions& options) {
  ModeFit best;
  auto search = options;
  int trials = 0;
  for (size_t mode = 0; mode < num_modes; ++mode) {
    const auto left = static_cast<int>(num_modes - mode - 1);
    search.max_trials =
        std::max(kFew, options.max_trials - trials - kFew * left);
    use(mode);
    const auto fit = find_batch(trial, meter, group, search);
    trials += fit.trials;
    if (fit.batch > best.fit.batch || best.fit.batch == 0) {
      best = {mode, fit};
    }
    if (best.fit.batch == options.most) {
      break;
    }
    // What fits when more is kept fits now, and memory that ended before its
    // limit will again.
    search.first = std::max<int64_t>(1, best.fit.batch);
    if (fit.failed > 0 && fit.batch > 0) {
      search.limit = fit.limit;
    }
  }
  best.fit.trials = trials;
  use(best.mode);
  return best;
}

}  // namespace lockstep::train
