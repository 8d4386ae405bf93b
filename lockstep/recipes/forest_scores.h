#pragma once

// What the verbs of the forest share: errors of one rank told by all, a model's
// score on a table, and how scores are named and shown.

#include <map>
#include <string>

#include "lockstep/forest/load.h"
#include "lockstep/forest/score.h"
#include "lockstep/forest/tree.h"
#include "lockstep/recipes/forest.h"
#include "lockstep/train/error.h"

namespace lockstep::recipes {

// The value, or a TrainError with the exit code of bad input.
template <class T>
T given(Result<T> result) {
  if (!result) {
    throw train::TrainError(train::kBadInput, result.error().to_string());
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(*result);
  }
}

// The same, when any rank fails.
template <class T>
T together(Result<T> result, collective::Communicator& group) {
  given(
      forest::agree(
          result ? Result<void>() : Result<void>(Error(result.error())),
          group));
  return std::move(*result);
}

// The table with the features of a model, in its order. `words`: its classes
// are.
Result<std::unique_ptr<forest::TableFile>> open_for(
    const std::vector<std::string>& features,
    const std::string& path,
    const std::string& label,
    bool required,
    bool words = false);

// What names the labels of data.test. A separate file of labels is of one
// table: data.test has data.test_label then, or data.label where nothing is
// trained. Throws TrainError when there is none.
std::string test_label(const ForestConfig& config, bool trains);

// All ranks together; the classes must be those of the model.
forest::Score score_file(
    const std::string& path,
    forest::LoadOptions options,
    const std::string& label,
    const forest::Forest& model,
    int threads,
    collective::Communicator& group);

// "test_accuracy", or "test_r2" and "test_rmse".
void note_score(
    const std::string& name,
    const forest::Score& score,
    bool classes,
    std::map<std::string, double>& metrics);
void print_metrics(const std::map<std::string, double>& metrics);

// confusion.csv, classes.csv and confusion.png.
Result<void> write_confusion(
    const record::Confusion& confusion,
    const os::Path& folder);

}  // namespace lockstep::recipes
