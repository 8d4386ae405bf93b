#include "lockstep/forest/training_set.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "lockstep/base/log.h"
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

// Rows from one that is sampled to the next, over the whole table.
uint64_t sample_step(const LoadedRows& rows) {
  return std::max<uint64_t>(1, (rows.total_rows + kBinSample - 1) / kBinSample);
}

// What all ranks gave, by rank.
template <class T>
std::vector<T> gather_values(const std::string& own, Communicator& group) {
  std::vector<T> values;
  for (const auto& part : gather_bytes(own, group)) {
    const size_t at = values.size();
    values.resize(at + part.size() / sizeof(T));
    if (!part.empty()) {
      std::memcpy(values.data() + at, part.data(), part.size());
    }
  }
  return values;
}

// Every n-th label of the whole table, sorted.
std::vector<double> sample_labels(const LoadedRows& rows, Communicator& group) {
  const uint64_t step = sample_step(rows);
  std::string own;
  for (size_t i = 0; i < rows.num_rows; ++i) {
    if ((rows.first_row + i) % step == 0) {
      own.append(
          reinterpret_cast<const char*>(rows.numbers.data() + i),
          sizeof(double));
    }
  }
  auto labels = gather_values<double>(own, group);
  std::sort(labels.begin(), labels.end());
  return labels;
}

// Every n-th row of the whole table.
std::vector<float> sample_rows(const LoadedRows& rows, Communicator& group) {
  const uint64_t step = sample_step(rows);
  const size_t width = rows.features.size();
  std::string own;
  for (size_t i = 0; i < rows.num_rows; ++i) {
    if ((rows.first_row + i) % step == 0) {
      own.append(
          reinterpret_cast<const char*>(rows.values.data() + i * width),
          width * sizeof(float));
    }
  }
  return gather_values<float>(own, group);
}

// How far apart the middle half of sorted labels lies, or, where most of them
// are equal, all but a twentieth at either end.
double spread_of(const std::vector<double>& sorted) {
  const auto at = [&](double share) {
    return sorted[static_cast<size_t>(
        share * static_cast<double>(sorted.size() - 1))];
  };
  const double half = at(.75) - at(.25);
  return half > 0 ? half : at(.95) - at(.05);
}

// A label far from the others makes the step of fixed point coarse for all.
void warn_of_outliers(
    const std::vector<double>& labels,
    double step,
    std::pair<double, double> ends,
    const Communicator& group) {
  const double spread = spread_of(labels);
  if (group.rank() == 0 && spread > 0 && step > spread / 1000) {
    log_warning(
        fmt::format(
            "labels lie between {} and {}, most of them within {:.3g}: they "
            "are told apart by {:.3g} at the least (30 bits over the whole "
            "range); leave such outliers out, or learn the logarithm",
            ends.first,
            ends.second,
            spread,
            step));
  }
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
  auto& target = set.forest.target;
  // From the median on: leaves are floats, and most of them are small then,
  // however far a few labels lie to one side.
  const auto labels = sample_labels(rows, group);
  target.offset = labels[labels.size() / 2];
  target.step =
      std::max(highest - target.offset, target.offset - lowest) / kFixedRange;
  if (!(target.step >= std::numeric_limits<double>::min())) {
    return bad(
        fmt::format("every label is {}: there is nothing to learn", lowest));
  }
  warn_of_outliers(labels, target.step, {lowest, highest}, group);
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
