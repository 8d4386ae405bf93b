#include "lockstep/forest/options.h"

#include <fmt/format.h>

namespace lockstep::forest {
namespace {

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

}  // namespace

Result<void>
check(const FitOptions& options, int num_classes, size_t num_features) {
  const bool numbers = options.criterion == Criterion::kSquaredError;
  if (numbers != (num_classes == 0)) {
    return bad(
        numbers ? "forest.criterion=squared_error is for numbers; classes take "
                  "entropy or gini"
                : "forest.criterion: numbers take squared_error");
  }
  if (options.features_per_split > static_cast<int64_t>(num_features)) {
    return bad(
        fmt::format(
            "forest.features={}: the table has {} features",
            options.features_per_split,
            num_features));
  }
  if (!options.class_weights.empty() &&
      options.class_weights.size() != static_cast<size_t>(num_classes)) {
    return bad(
        fmt::format(
            "forest.class_weights has {} weights for {} classes",
            options.class_weights.size(),
            num_classes));
  }
  return {};
}

}  // namespace lockstep::forest
