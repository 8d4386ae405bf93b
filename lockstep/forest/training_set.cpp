#include "lockstep/forest/training_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/forest/gather.h"
#include "lockstep/forest/threads.h"

namespace lockstep::forest {
namespace {

using collective::Communicator;
using collective::DataType;
using collective::ReduceOp;

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

// Every n-th row of the whole table.
std::vector<float> sample_rows(const LoadedRows& rows, Communicator& group) {
  const uint64_t step =
      std::max<uint64_t>(1, (rows.total_rows + kBinSample - 1) / kBinSample);
  const size_t width = rows.features.size();
  std::string own;
  for (size_t i = 0; i < rows.num_rows; ++i) {
    if ((rows.first_row + i) % step == 0) {
      own.append(
          reinterpret_cast<const char*>(rows.values.data() + i * width),
          width * sizeof(float));
    }
  }
  std::vector<float> sample;
  for (const auto& part : gather_bytes(own, group)) {
    const size_t at = sample.size();
    sample.resize(at + part.size() / sizeof(float));
    std::memcpy(sample.data() + at, part.data(), part.size());
  }
  return sample;
}

Result<void> make_value_target(
    const LoadedRows& rows,
    TrainingSet& set,
    Communicator& group) {
  double ends[2] = {HUGE_VAL, HUGE_VAL};  // lowest, and the highest negated
  for (const double value : rows.numbers) {
    ends[0] = std::min(ends[0], value);
    ends[1] = std::min(ends[1], -value);
  }
  group.all_reduce(ends, 2, DataType::kFloat64, ReduceOp::kMin);
  const double lowest = ends[0];
  const double highest = -ends[1];
  if (!(highest > lowest)) {
    return bad(
        fmt::format("every label is {}: there is nothing to learn", lowest));
  }
  auto& target = set.forest.target;
  target.offset = lowest + (highest - lowest) / 2;
  target.step = (highest - lowest) / 2 / kFixedRange;
  set.table.targets.resize(rows.num_rows);
  for (size_t i = 0; i < rows.num_rows; ++i) {
    set.table.targets[i] = static_cast<int32_t>(
        std::lround((rows.numbers[i] - target.offset) / target.step));
  }
  return {};
}

Result<void> make_class_target(LoadedRows& rows, TrainingSet& set) {
  if (rows.class_names.size() < 2) {
    return bad(
        fmt::format(
            "every label is '{}': a forest needs two classes at least",
            rows.class_names.empty() ? "" : rows.class_names[0]));
  }
  set.forest.target.classes = rows.class_names;
  set.table.targets = std::move(rows.classes);
  return {};
}

}  // namespace

Result<TrainingSet> make_training_set(
    LoadedRows rows,
    size_t max_bins,
    int threads,
    Communicator& group) {
  if (rows.total_rows < 2) {
    return bad(
        fmt::format(
            "{} rows to learn from ({} dropped for missing values); a forest "
            "needs two at least",
            rows.total_rows,
            rows.dropped));
  }
  if (rows.total_rows > uint64_t{1} << 31) {
    return bad(fmt::format("{} rows; at most 2^31 are taken", rows.total_rows));
  }
  TrainingSet set;
  set.forest.features = rows.features;
  LOCKSTEP_TRY(
      rows.numbers.empty() && !rows.class_names.empty()
          ? make_class_target(rows, set)
          : make_value_target(rows, set, group));
  const size_t width = rows.features.size();
  set.forest.binning =
      Binning::make(sample_rows(rows, group), width, max_bins, threads);
  auto& table = set.table;
  table.num_features = width;
  table.num_rows = rows.num_rows;
  table.first_row = rows.first_row;
  table.total_rows = rows.total_rows;
  table.bins.resize(rows.num_rows * width);
  constexpr size_t kPiece = 16384;
  for_pieces(
      (rows.num_rows + kPiece - 1) / kPiece, threads, [&](size_t i, size_t) {
        const size_t first = i * kPiece;
        const size_t count = std::min(kPiece, rows.num_rows - first);
        set.forest.binning.encode(
            std::span(rows.values).subspan(first * width, count * width),
            table.bins.data() + first * width);
      });
  return set;
}

std::vector<double> balanced_weights(
    const BinnedTable& table,
    int num_classes,
    Communicator& group) {
  std::vector<int64_t> counts(static_cast<size_t>(num_classes));
  for (const int32_t target : table.targets) {
    ++counts[static_cast<size_t>(target)];
  }
  group.all_reduce(
      counts.data(), counts.size(), DataType::kInt64, ReduceOp::kSum);
  std::vector<double> weights;
  for (const int64_t count : counts) {
    weights.push_back(
        static_cast<double>(table.total_rows) /
        static_cast<double>(num_classes) /
        static_cast<double>(std::max<int64_t>(1, count)));
  }
  return weights;
}

}  // namespace lockstep::forest
