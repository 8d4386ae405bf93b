#include "lockstep/forest/score.h"

#include <cmath>

#include "lockstep/forest/gather.h"

namespace lockstep::forest {
namespace {

using collective::Communicator;

Score score_table(
    std::span<const float> values,
    const BinnedTable& table,
    const Target& target,
    Communicator& group) {
  if (target.num_classes() > 0) {
    return score_classes(values, table.targets, target, group);
  }
  std::vector<double> truth;
  truth.reserve(table.num_rows);
  for (const int32_t fixed : table.targets) {
    truth.push_back(fixed * target.step);
  }
  return score_numbers(values, truth, group);
}

}  // namespace

Score score_classes(
    std::span<const float> values,
    std::span<const int32_t> truth,
    const Target& target,
    Communicator& group) {
  const auto classes = static_cast<size_t>(target.num_classes());
  const auto chosen = classes_of(values, target.num_classes());
  Score score;
  score.confusion.classes = target.classes;
  score.confusion.counts.assign(classes * classes, 0);
  for (size_t i = 0; i < truth.size(); ++i) {
    if (!std::isnan(values[i * classes])) {
      ++score.confusion.counts
            [static_cast<size_t>(truth[i]) * classes +
             static_cast<size_t>(chosen[i])];
    }
  }
  group.all_reduce(
      score.confusion.counts.data(),
      score.confusion.counts.size(),
      collective::DataType::kInt64,
      collective::ReduceOp::kSum);
  int64_t right = 0;
  for (size_t a = 0; a < classes; ++a) {
    right += score.confusion.at(a, a);
    for (size_t b = 0; b < classes; ++b) {
      score.rows += score.confusion.at(a, b);
    }
  }
  score.accuracy = score.rows > 0 ? static_cast<double>(right) /
                                        static_cast<double>(score.rows)
                                  : 0;
  return score;
}

Score score_numbers(
    std::span<const float> values,
    std::span<const double> truth,
    Communicator& group) {
  // Around a value that all ranks know, so that squares do not cancel.
  std::vector<double> sums(2);
  for (const double value : truth) {
    sums[0] += 1;
    sums[1] += value;
  }
  sum_over_ranks(sums, group);
  const double mean = sums[0] > 0 ? sums[1] / sums[0] : 0;
  std::vector<double> parts(3);
  for (size_t i = 0; i < truth.size(); ++i) {
    if (!std::isnan(values[i])) {
      const double error = truth[i] - static_cast<double>(values[i]);
      parts[0] += 1;
      parts[1] += error * error;
      parts[2] += (truth[i] - mean) * (truth[i] - mean);
    }
  }
  sum_over_ranks(parts, group);
  Score score;
  score.rows = static_cast<int64_t>(parts[0]);
  score.rmse = parts[0] > 0 ? std::sqrt(parts[1] / parts[0]) : 0;
  score.r2 = parts[2] > 0 ? 1 - parts[1] / parts[2] : 0;
  return score;
}

Score training_score(
    const Predictor& predictor,
    const BinnedTable& table,
    const Target& target,
    int threads,
    Communicator& group) {
  const auto width = static_cast<size_t>(std::max(1, target.num_classes()));
  std::vector<float> values(table.num_rows * width);
  predictor.predict_bins(
      table.bins.data(), table.num_rows, values.data(), threads);
  return score_table(values, table, target, group);
}

Score out_of_bag_score(
    const Predictor& predictor,
    const BinnedTable& table,
    const Target& target,
    const FitOptions& options,
    Communicator& group) {
  const auto width = static_cast<size_t>(std::max(1, target.num_classes()));
  std::vector<Draws> draws;
  for (int64_t tree = 0; tree < options.trees; ++tree) {
    draws.emplace_back(
        tree_key(options.seed, static_cast<uint64_t>(tree)),
        options.bootstrap,
        options.sample);
  }
  std::vector<float> values(table.num_rows * width);
  predictor.predict_out_of_bag(
      table.bins.data(),
      table.num_rows,
      table.first_row,
      draws,
      values.data(),
      options.threads);
  return score_table(values, table, target, group);
}

}  // namespace lockstep::forest
