#pragma once

// For tests: small tables whose labels follow a known rule.

#include <random>
#include <utility>

#include "lockstep/forest/table.h"
#include "lockstep/forest/tree.h"

namespace lockstep::forest {

struct Made {
  BinnedTable table;
  Target target;
};

// Features of `bins` values; the class or the value follows the first two, with
// noise. The last feature is constant.
inline Made make_table(
    size_t rows,
    size_t features,
    int classes,
    int bins = 64,
    unsigned seed = 1) {
  std::mt19937 generator(seed);
  std::uniform_int_distribution<int> bin(0, bins - 1);
  std::normal_distribution<double> noise(0, .3);
  Made made;
  auto& table = made.table;
  table.num_features = features;
  table.num_rows = table.total_rows = rows;
  for (size_t i = 0; i < rows; ++i) {
    for (size_t f = 0; f < features; ++f) {
      table.bins.push_back(
          f + 1 == features ? 7 : static_cast<uint8_t>(bin(generator)));
    }
    const uint8_t* row = table.bins.data() + i * features;
    const double rule =
        (2. * row[0] + row[1]) / (3. * bins) + noise(generator) / 4;
    if (classes > 0) {
      const int label = static_cast<int>(rule * classes);
      table.targets.push_back(std::min(std::max(label, 0), classes - 1));
    } else {
      table.targets.push_back(static_cast<int32_t>(rule * 1e6));
    }
  }
  for (int c = 0; c < classes; ++c) {
    made.target.classes.push_back(std::to_string(c));
  }
  return made;
}

// The rows that rank `rank` of `ranks` would hold.
inline BinnedTable shard(const BinnedTable& table, int rank, int ranks) {
  const auto first =
      table.num_rows * static_cast<size_t>(rank) / static_cast<size_t>(ranks);
  const auto last = table.num_rows * static_cast<size_t>(rank + 1) /
                    static_cast<size_t>(ranks);
  BinnedTable part;
  part.num_features = table.num_features;
  part.num_rows = last - first;
  part.first_row = first;
  part.total_rows = table.num_rows;
  const auto at = [](size_t n) { return static_cast<int64_t>(n); };
  part.bins.assign(
      table.bins.begin() + at(first * table.num_features),
      table.bins.begin() + at(last * table.num_features));
  part.targets.assign(
      table.targets.begin() + at(first), table.targets.begin() + at(last));
  return part;
}

}  // namespace lockstep::forest
