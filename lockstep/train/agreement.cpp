#include "lockstep/train/agreement.h"

#include <algorithm>
#include <cmath>

namespace lockstep::train {
namespace {

constexpr size_t kShared = 3;  // samples, stop, out of time

}  // namespace

Agreement::Agreement(collective::Communicator& group, size_t num_metrics)
    : group_(group),
      num_metrics_(num_metrics),
      values_(num_metrics + kShared + 2 * static_cast<size_t>(group.size())) {}

collective::Timing Agreement::reduce(const Own& own) {
  std::fill(values_.begin(), values_.end(), 0);
  bool finite = true;
  for (size_t i = 0; i < num_metrics_; ++i) {
    finite = finite && std::isfinite(own.metrics[i]);
    values_[i] = std::isfinite(own.metrics[i]) ? own.metrics[i] : 0;
  }
  values_[num_metrics_] = static_cast<double>(own.samples);
  values_[num_metrics_ + 1] = own.stop ? 1 : 0;
  values_[num_metrics_ + 2] = own.out_of_time ? 1 : 0;
  const auto rank = static_cast<size_t>(group_.rank());
  const auto world = static_cast<size_t>(group_.size());
  values_[num_metrics_ + kShared + rank] = finite ? 0 : 1;
  values_[num_metrics_ + kShared + world + rank] = own.seconds;
  return group_.all_reduce(
      values_.data(),
      values_.size(),
      collective::DataType::kFloat64,
      collective::ReduceOp::kSum);
}

int Agreement::first_nan_rank() const {
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (values_[num_metrics_ + kShared + static_cast<size_t>(rank)] > 0) {
      return rank;
    }
  }
  return -1;
}

std::span<const double> Agreement::seconds() const {
  return std::span(values_).last(static_cast<size_t>(group_.size()));
}

}  // namespace lockstep::train
