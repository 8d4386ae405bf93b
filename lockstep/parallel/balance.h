#pragma once

// Which part of the global batch each rank takes, so that machines of different
// speeds end a step together and none waits. Pure: every rank feeds it the same
// reduced measurements and so comes to the same shares. No model of the machine
// is assumed: shares follow samples per second of the last steps, again and
// again, until all need the same time; what a step costs beside its samples is
// in that time and so is balanced, too.
//
// It does not flap: it looks at the medians of a few steps, and changes when
// the step gets shorter by more than `gain` and by more than the noise of what
// it saw. It follows: after `settle + window` steps it may change again.

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace lockstep::parallel {

struct BalanceOptions {
  int window = 5;     // steps that a decision is made from
  int settle = 1;     // steps after a change that are not measured
  double gain = .03;  // share of the step that a change must save
};

class Balance {
 public:
  // Equal shares to begin with, the first ranks taking one more where `batch`
  // is no multiple. Throws std::invalid_argument when a rank would have none.
  Balance(int64_t batch, size_t ranks, const BalanceOptions& options = {});

  // Samples of each rank; never 0, and always the batch in sum.
  const std::vector<int64_t>& shares() const { return shares_; }

  // seconds[r]: what rank r needed for its share in a step, without waiting for
  // others. True when shares() changed. A step with a time that is no positive
  // number (a clock that went back) is left out.
  bool observe(std::span<const double> seconds);

 private:
  int64_t batch_;
  BalanceOptions options_;
  std::vector<int64_t> shares_;
  std::deque<std::vector<double>> seen_;
  int unsettled_;
};

// `batch` samples over ranks of `speeds` samples a second, each rank at least
// one, so that the last one ends as early as it can. Ties go to lower ranks.
std::vector<int64_t> split_batch(int64_t batch, std::span<const double> speeds);

}  // namespace lockstep::parallel
