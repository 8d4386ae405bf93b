#pragma once

// What a forest is grown with. Plain values; the recipe reads them from its
// configuration and check() refuses what makes no sense.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/base/result.h"

namespace lockstep::forest {

enum class Criterion { kEntropy, kGini, kSquaredError };

// How ranks share the work; the model is the same.
enum class Exchange {
  kAuto,        // rows when the binned table fits in the memory budget
  kRows,        // every rank gets all binned rows once and grows its own trees
  kHistograms,  // rows stay; histograms are summed, small nodes move
};

struct FitOptions {
  int64_t trees = 150;
  int64_t depth = 15;  // 0: until leaves are pure
  Criterion criterion = Criterion::kEntropy;
  int64_t features_per_split = 0;  // 0: square root of their number
  bool bootstrap = true;
  double sample = 1;      // expected share of rows drawn for a tree
  int64_t min_split = 2;  // drawn rows of a node that may be split
  int64_t min_leaf = 1;   // drawn rows of a leaf
  // One for each class; empty: all 1.
  std::vector<double> class_weights{};
  uint64_t seed = 0;

  int threads = 1;
  Exchange exchange = Exchange::kAuto;
  size_t memory = size_t{1} << 30;  // of what this rank exchanges, in bytes
  int64_t local_rows = 8192;        // nodes up to this size finish on one rank
};

// `num_classes` 0 is regression. The error names the key and what it takes.
Result<void>
check(const FitOptions& options, int num_classes, size_t num_features);

}  // namespace lockstep::forest
