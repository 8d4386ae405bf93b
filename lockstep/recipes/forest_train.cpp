#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <optional>

#include "lockstep/base/log.h"
#include "lockstep/forest/fit.h"
#include "lockstep/forest/gather.h"
#include "lockstep/forest/model_file.h"
#include "lockstep/forest/predict.h"
#include "lockstep/forest/score.h"
#include "lockstep/forest/training_set.h"
#include "lockstep/os/clock.h"
#include "lockstep/recipes/forest.h"
#include "lockstep/recipes/forest_scores.h"
#include "lockstep/record/csv.h"
#include "lockstep/record/plot.h"
#include "lockstep/train/error.h"
#include "lockstep/train/recorder.h"

namespace lockstep::recipes {
namespace {

namespace fs = std::filesystem;

double now() {
  return os::real_clock().unix_seconds();
}

// An iteration event for each tree that this rank has grown, of `rows` rows.
class TreeEvents {
 public:
  TreeEvents(record::EventWriter& events, uint64_t rows)
      : events_(events), rows_(rows), last_(now()) {}
  void add(size_t trees) {
    const std::lock_guard lock(mutex_);
    const double time = now();
    wire::Iteration iteration;
    iteration.step = steps_ += static_cast<int64_t>(trees);
    iteration.samples = static_cast<int64_t>(rows_ * trees);
    iteration.compute = iteration.total = time - last_;
    events_.write(iteration);
    last_ = time;
  }
  // After the last tree.
  void end(double seconds) {
    events_.write(
        wire::Epoch{0, steps_, steps_ * static_cast<int64_t>(rows_), seconds});
  }

 private:
  record::EventWriter& events_;
  uint64_t rows_;
  std::mutex mutex_;
  int64_t steps_ = 0;
  double last_;
};

forest::LoadOptions load_options(
    const ForestConfig& config,
    forest::Part part) {
  forest::LoadOptions options;
  options.regression = config.forest.criterion == "squared_error";
  options.drop_missing = config.data.missing == "drop";
  options.part = part;
  options.held_out = config.data.held_out;
  options.seed = static_cast<uint64_t>(config.trainer.seed);
  options.classes = forest::class_names(config.data.classes);
  options.label = config.data.label;
  options.table = config.data.train;
  return options;
}

// Keys that say nothing to a forest of numbers, or two things.
Result<void> check_keys(const ForestConfig& config) {
  auto classes = forest::class_names(config.data.classes);
  const bool numbers = config.forest.criterion == "squared_error";
  if (numbers && (!classes.empty() || config.forest.class_weights != "none")) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "{} with forest.criterion=squared_error: numbers have no classes; "
            "accepted: entropy or gini, or without it",
            classes.empty() ? "forest.class_weights" : "data.classes"));
  }
  std::sort(classes.begin(), classes.end());
  const auto twice = std::adjacent_find(classes.begin(), classes.end());
  if (twice != classes.end()) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "data.classes: '{}' stands twice; accepted: classes that differ",
            *twice));
  }
  return {};
}

// What can be seen of data.test before trees are grown.
void check_test(
    const ForestConfig& config,
    const std::vector<std::string>& features,
    collective::Communicator& group) {
  const auto& path = config.data.test;
  const auto label = test_label(config, /*trains=*/true);
  const auto table = together(open_for(features, path, label, true), group);
  given(forest::agree_on_table(*table, path, group));
  if (table->num_rows() == 0) {
    throw train::TrainError(
        train::kBadInput,
        fmt::format("data.test={}: a table without rows", path));
  }
  given(
      forest::check_labels(*table, config.forest.criterion == "squared_error"));
}

forest::TrainingSet read_training_set(
    const ForestConfig& config,
    int threads,
    collective::Communicator& group) {
  if (config.data.train.empty()) {
    throw train::TrainError(
        train::kBadInput,
        "data.train is not set: a table to learn from (.csv, .npy, .h5)");
  }
  if (config.data.label.empty()) {
    throw train::TrainError(
        train::kBadInput,
        "data.label is empty: a column's name (.csv, .h5) or number (.npy), or "
        "a .npy of labels");
  }
  given(check_keys(config));
  const auto table = together(
      forest::open_table(
          config.data.train,
          {.label = config.data.label,
           .words =
               forest::are_words(forest::class_names(config.data.classes))}),
      group);
  if (!config.data.test.empty()) {
    check_test(config, table->features(), group);
  }
  const bool split = config.data.test.empty() && config.data.held_out > 0;
  auto rows = given(load_rows(
      *table,
      load_options(
          config, split ? forest::Part::kTraining : forest::Part::kAll),
      group));
  if (rows.dropped > 0 && group.rank() == 0) {
    log_info(
        fmt::format(
            "{}: {} rows with missing values left out",
            config.data.train,
            rows.dropped));
  }
  return given(make_training_set(
      std::move(rows),
      static_cast<size_t>(config.forest.bins),
      threads,
      group));
}

// On data.test, or on the part of data.train that was held out.
std::optional<forest::Score> test_score(
    const ForestConfig& config,
    const forest::Forest& model,
    int threads,
    collective::Communicator& group) {
  const bool own = !config.data.test.empty();
  if (!own && config.data.held_out <= 0) {
    return std::nullopt;
  }
  const auto& path = own ? config.data.test : config.data.train;
  const auto score = score_file(
      path,
      load_options(config, own ? forest::Part::kAll : forest::Part::kHeldOut),
      own ? test_label(config, /*trains=*/true) : config.data.label,
      model,
      threads,
      group);
  if (score.rows > 0) {
    return score;
  }
  // An accuracy of 0 would be taken for one.
  if (group.rank() == 0) {
    log_warning(
        fmt::format(
            "{}: not tested: {}",
            path,
            own ? "no row of it is whole" : "no row of so few was held out"));
  }
  return std::nullopt;
}

void write_importances(
    const forest::Forest& model,
    const record::RunDirectory& run) {
  const auto weights = importances(model);
  std::string csv = "feature,importance\n";
  record::Bars bars;
  bars.parts = {"importance"};
  for (size_t i = 0; i < weights.size(); ++i) {
    csv +=
        fmt::format("{},{}\n", record::csv_cell(model.features[i]), weights[i]);
    bars.rows.push_back({model.features[i], {weights[i]}});
  }
  auto& files = os::real_files();
  given(files.write_atomic(run.path() / "importances.csv", csv));
  bars.title = "How much each feature lowers impurity, as a share";
  given(files.make_directories(run.plots()));
  given(files.write_atomic(
      run.plots() / "importances.svg", record::bars_svg(bars)));
}

wire::Init init_event(
    const ForestConfig& config,
    const forest::TrainingSet& set,
    const forest::FitOptions& options,
    const OwnRun& run) {
  wire::Init init;
  init.program = "lockstep-train forest";
  init.world_size = run.group->size();
  init.seconds = now() - run.started;
  const auto exchange = choose_exchange(set.table, options, *run.group);
  init.facts = {
      {"device", "cpu"},
      {"collective", run.group->name()},
      {"launcher", run.environment->launcher},
      {"data", config.data.train},
      {"rows", std::to_string(set.table.total_rows)},
      {"features", std::to_string(set.table.num_features)},
      {"classes", std::to_string(set.forest.target.num_classes())},
      {"trees", std::to_string(options.trees)},
      {"depth", std::to_string(options.depth)},
      {"criterion", config.forest.criterion},
      {"threads", std::to_string(options.threads)},
      {"exchange",
       exchange == forest::Exchange::kHistograms ? "histograms" : "rows"}};
  return init;
}

}  // namespace

int train_forest(const ForestConfig& config, const OwnRun& run) {
  auto& group = *run.group;
  const bool leader = group.rank() == 0;
  auto options = fit_options(config, *run.environment);
  const double began = now();
  auto set = read_training_set(config, options.threads, group);
  const int classes = set.forest.target.num_classes();
  if (config.forest.class_weights == "balanced" && classes > 0) {
    options.class_weights = balanced_weights(set.table, classes, group);
  }
  given(check(options, classes, set.table.num_features));
  auto& events = run.begin();
  events.write(init_event(config, set, options, run));
  events.write(wire::Phase{"train"});
  const double read = now();
  // Where rows travel each tree is grown of all of them by one rank.
  const bool shares_trees = choose_exchange(set.table, options, group) ==
                            forest::Exchange::kHistograms;
  TreeEvents tree_events(
      events, shares_trees ? set.table.num_rows : set.table.total_rows);
  set.forest.trees = grow_trees(
      set.table, set.forest.target, options, group, [&](size_t trees) {
        tree_events.add(trees);
      });
  const double grown = now();
  tree_events.end(grown - read);

  const fs::path folder = !config.trainer.checkpoint_dir.empty()
                              ? config.trainer.checkpoint_dir
                          : !run.environment->checkpoints.empty()
                              ? run.environment->checkpoints
                              : run.directory->checkpoints().string();
  const fs::path model = folder / "last.safetensors";
  if (leader) {
    given(os::real_files().make_directories(folder));
    given(record::set_checkpoints_aside(folder));  // another run's
    given(write_model(
        os::real_files(),
        model,
        set.forest,
        {{"lockstep.config", run.config}}));
    events.write(
        wire::Checkpoint{
            options.trees, model.string(), "final", now() - grown});
    write_importances(set.forest, *run.directory);
  }
  events.write(wire::Phase{"validation"});
  const forest::Predictor predictor(set.forest, options.threads);
  std::map<std::string, double> metrics;
  const auto note = [&](const std::string& name, const forest::Score& score) {
    note_score(name, score, classes > 0, metrics);
  };
  note(
      "train",
      training_score(
          predictor, set.table, set.forest.target, options.threads, group));
  if (config.forest.out_of_bag && options.bootstrap) {
    const auto score = out_of_bag_score(
        predictor, set.table, set.forest.target, options, group);
    if (score.rows > 0) {
      note("out_of_bag", score);
    } else if (leader) {
      log_warning("not scored out of bag: every tree drew every row");
    }
  }
  metrics["read_seconds"] = read - began;
  metrics["fit_seconds"] = grown - read;
  std::optional<forest::Score> tested;
  try {
    tested = test_score(config, set.forest, options.threads, group);
  } catch (const train::TrainError&) {
    // A cell of data.test: what was grown and measured is not lost with it.
    events.write(wire::Metric{options.trees, 0, metrics});
    if (leader) {
      print_metrics(metrics);
      std::printf("model: %s\n", model.c_str());
      std::fflush(stdout);
    }
    throw;
  }
  if (tested) {
    note("test", *tested);
    metrics["predict_seconds"] = tested->seconds;
  }
  train::Recorder recorder(run.directory, leader, 0);
  recorder.metrics(options.trees, 0, metrics);
  recorder.flush();
  events.write(wire::Metric{options.trees, 0, metrics});
  if (leader) {
    std::printf(
        "forest: %lld trees from %llu rows x %zu features in %.3f s (read "
        "%.3f s)\n",
        static_cast<long long>(options.trees),
        static_cast<unsigned long long>(set.table.total_rows),
        set.table.num_features,
        grown - read,
        read - began);
    print_metrics(metrics);
    if (tested && classes > 0) {
      given(write_confusion(tested->confusion, run.directory->path() / "test"));
    }
    std::printf(
        "model: %s\nrun directory: %s\n",
        model.c_str(),
        run.directory->path().c_str());
  }
  return 0;
}

}  // namespace lockstep::recipes
