#pragma once

// The recipe `forest`: a histogram random forest on tables. It has no step
// loop: it reads its rows, grows trees, scores them and writes one model.
// Verbs: train, test, predict (over files, streaming), collocate (satellite
// tracks into training rows).

#include "lockstep/forest/load.h"
#include "lockstep/forest/options.h"
#include "lockstep/recipes/registry.h"

namespace lockstep::recipes {

struct ForestConfig {
  struct Data {
    std::string train;
    std::string test;
    std::string label = "label";
    std::string test_label;
    std::string missing = "error";
    double held_out = .3;
    std::vector<std::string> classes{};
    void bind(config::Binder& b);
  };
  struct Growing {
    int64_t trees = 150;
    int64_t depth = 15;
    std::string criterion = "entropy";
    int64_t features = 0;
    bool bootstrap = true;
    double sample = 1;
    int64_t min_split = 2;
    int64_t min_leaf = 1;
    std::string class_weights = "none";
    bool out_of_bag = false;
    int64_t bins = 256;
    int64_t threads = 0;
    std::string exchange = "auto";
    Bytes memory{uint64_t{1} << 30};
    int64_t local_rows = 8192;
    void bind(config::Binder& b);
  };
  struct Trainer {
    int64_t seed = 0;
    std::string collective = "auto";
    std::string checkpoint_dir;
    Duration timeout = std::chrono::minutes(5);
    void bind(config::Binder& b);
  };
  struct Collocation {
    std::string calipso;
    std::string viirs;
    std::string rows = "collocated";
    double distance = 5;
    Duration window = std::chrono::minutes(6);
    void bind(config::Binder& b);
  };
  Data data{};
  Growing forest{};
  Trainer trainer{};
  Collocation collocate{};
  std::string out;
  std::string checkpoint;
  std::string predictions = "predictions.csv";
  bool probabilities = false;
  void bind(config::Binder& b);
};

// From the config; class weights only when they are given as numbers.
forest::FitOptions fit_options(
    const ForestConfig& config,
    const train::RankEnvironment& environment);

// Each verb; the exit code. They throw TrainError.
int train_forest(const ForestConfig& config, const OwnRun& run);
int test_forest(const ForestConfig& config, const OwnRun& run);
int predict_forest(const ForestConfig& config, const OwnRun& run);
int collocate_forest(const ForestConfig& config, const OwnRun& run);

Entry forest_entry();

}  // namespace lockstep::recipes
