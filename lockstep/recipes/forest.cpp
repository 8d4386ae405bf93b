#include "lockstep/recipes/forest.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "lockstep/os/host.h"
#include "lockstep/train/error.h"

namespace lockstep::recipes {
namespace {

using forest::Criterion;
using forest::Exchange;

// Weighted sums over 2^31 rows then stay far within what a gain's float holds.
constexpr double kLargestWeight = 1e9;

bool good_weight(double weight) {
  return weight == 0 ||
         (weight >= 1 / kLargestWeight && weight <= kLargestWeight);
}

Result<std::vector<double>> parse_weights(const std::string& text) {
  std::vector<double> weights;
  const char* at = text.data();
  const char* const end = at + text.size();
  bool good = true;
  while (good && at < end) {
    const auto [next, error] = std::from_chars(at, end, weights.emplace_back());
    good = error == std::errc() && good_weight(weights.back()) &&
           (next == end || (*next == ',' && next + 1 < end));
    at = next < end ? next + 1 : next;
  }
  // With nothing but zeros no row counts.
  if (!good || std::ranges::none_of(weights, [](double w) { return w > 0; })) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "'{}'; accepted: none, balanced, or a weight for each class like "
            "1,2.5,1 (each 0 or from 1e-9 to 1e9, one above 0)",
            text));
  }
  return weights;
}

int run_verb(const ForestConfig& config, const OwnRun& run) {
  if (run.verb == "test") {
    return test_forest(config, run);
  }
  if (run.verb == "predict") {
    return predict_forest(config, run);
  }
  if (run.verb == "collocate") {
    return collocate_forest(config, run);
  }
  return train_forest(config, run);
}

Result<Prepared> prepare_forest(const config::Node& node, int /*world_size*/) {
  LOCKSTEP_ASSIGN(const auto config, config::read<ForestConfig>(node));
  if (config.forest.out_of_bag && !config.forest.bootstrap) {
    return Error(
        ErrorCode::kInvalidInput,
        "forest.out_of_bag=true with forest.bootstrap=false: every tree draws "
        "every row, so no row is out of any bag; accepted: one of them");
  }
  Prepared prepared;
  prepared.config = config::print_yaml(config::describe(config));
  prepared.trainer.device = "cpu";
  prepared.trainer.collective = config.trainer.collective;
  prepared.trainer.timeout = config.trainer.timeout;
  prepared.trainer.seed = config.trainer.seed;
  prepared.out = config.out;
  prepared.checkpoint = config.checkpoint;
  prepared.run = [config](const OwnRun& run) { return run_verb(config, run); };
  return prepared;
}

}  // namespace

void ForestConfig::Data::bind(config::Binder& b) {
  b.field("train", train, "table to learn from: .csv, .npy, .h5 or a folder");
  b.field(
      "test",
      test,
      "table to test on or to predict; none: a part of data.train is held out");
  b.field(
      "label",
      label,
      "column of the label; NPY: its number or a .npy of labels");
  b.field(
      "test_label",
      test_label,
      "label of data.test where it is another than data.label");
  b.choice(
      "missing",
      missing,
      {"error", "drop"},
      "rows with a value that is missing or not finite");
  b.field(
      "held_out",
      held_out,
      "share of data.train to test on when there is no data.test",
      config::between(0, .9));
  b.field("classes", classes, "accepted labels; none: all that appear");
}

void ForestConfig::Growing::bind(config::Binder& b) {
  b.field("trees", trees, "number of trees", config::between(1, 1000000));
  b.field("depth", depth, "deepest leaf; 0: any", config::between(0, 1000000));
  b.choice(
      "criterion",
      criterion,
      {"entropy", "gini", "squared_error"},
      "how a split is judged; squared_error: labels are numbers");
  b.field(
      "features",
      features,
      "looked at for a split; 0: square root of their number",
      config::at_least(0));
  b.field("bootstrap", bootstrap, "each tree draws its rows");
  b.field(
      "sample",
      sample,
      "expected share of rows a tree draws",
      config::between(.001, 2));
  b.field(
      "min_split",
      min_split,
      "drawn rows of a node that may be split",
      config::at_least(2));
  b.field("min_leaf", min_leaf, "drawn rows of a leaf", config::at_least(1));
  b.text(
      "class_weights",
      class_weights,
      "none, balanced, or one for each class, sorted or as in data.classes: "
      "1,2.5,1",
      [](const std::string& text) -> Result<void> {
        if (text != "none" && text != "balanced") {
          LOCKSTEP_TRY(parse_weights(text));
        }
        return {};
      });
  b.field(
      "out_of_bag",
      out_of_bag,
      "score rows by the trees grown without them; needs forest.bootstrap");
  b.field("bins", bins, "of a feature", config::between(2, 256));
  b.field(
      "threads",
      threads,
      "of a rank; 0: OMP_NUM_THREADS, else its share of the cores",
      config::at_least(0));
  b.choice(
      "exchange",
      exchange,
      {"auto", "rows", "histograms"},
      "what ranks share; auto: rows when they fit in forest.memory");
  b.field("memory", memory, "of a rank, for what it exchanges");
  b.field(
      "local_rows",
      local_rows,
      "nodes up to this size finish on one rank (histograms)",
      config::at_least(1));
}

void ForestConfig::Trainer::bind(config::Binder& b) {
  b.field("seed", seed, "of every draw", config::at_least(0));
  b.field("collective", collective, "auto, host or mpi");
  b.field(
      "checkpoint_dir", checkpoint_dir, "for the model; default: the run's");
  b.field("timeout", timeout, "of every wait for another rank");
}

void ForestConfig::Collocation::bind(config::Binder& b) {
  b.field("calipso", calipso, "folder of CALIPSO granules, .hdf (HDF4)");
  b.field("viirs", viirs, "folder of VIIRS granules, .nc (NetCDF 4)");
  b.field("rows", rows, "folder for the collocated rows, .h5 a granule");
  b.field("distance", distance, "kilometres, at most", config::above(0));
  b.field("window", window, "length of a VIIRS granule");
}

void ForestConfig::bind(config::Binder& b) {
  b.group("data", data, "tables");
  b.group("forest", forest, "the trees");
  b.group("trainer", trainer, "the run");
  b.group("collocate", collocate, "satellite tracks, for the verb 'collocate'");
  b.field("out", out, "run directory; default: runs/<id>");
  b.field("checkpoint", checkpoint, "model for 'test' and 'predict'");
  b.field("predictions", predictions, "file that 'predict' writes, .csv");
  b.field(
      "probabilities",
      probabilities,
      "'predict' writes the share of each class");
}

forest::FitOptions fit_options(
    const ForestConfig& config,
    const train::RankEnvironment& environment) {
  const auto& from = config.forest;
  forest::FitOptions options;
  options.trees = from.trees;
  options.depth = from.depth;
  options.criterion = from.criterion == "entropy" ? Criterion::kEntropy
                      : from.criterion == "gini"  ? Criterion::kGini
                                                  : Criterion::kSquaredError;
  options.features_per_split = from.features;
  options.bootstrap = from.bootstrap;
  options.sample = from.sample;
  options.min_split = from.min_split;
  options.min_leaf = from.min_leaf;
  if (from.class_weights != "none" && from.class_weights != "balanced") {
    options.class_weights = parse_weights(from.class_weights).value();
  }
  options.seed = static_cast<uint64_t>(config.trainer.seed);
  options.exchange = from.exchange == "rows"         ? Exchange::kRows
                     : from.exchange == "histograms" ? Exchange::kHistograms
                                                     : Exchange::kAuto;
  options.memory = from.memory.count;
  options.local_rows = from.local_rows;
  options.threads = static_cast<int>(from.threads);
  if (const char* text = std::getenv("OMP_NUM_THREADS");
      options.threads == 0 && text != nullptr) {
    options.threads = std::atoi(text);
  }
  if (options.threads <= 0) {
    options.threads = std::max(
        1, os::host_facts().cores / std::max(1, environment.local_world_size));
  }
  return options;
}

Entry forest_entry() {
  Entry entry;
  entry.name = "forest";
  entry.summary = "histogram random forest on tables; no GPU";
  entry.verbs = {"predict", "collocate"};
  entry.own_keys = true;
  entry.add_groups = [](config::Groups&) {};
  entry.prepare = prepare_forest;
  entry.describe = [] { return config::describe<ForestConfig>(); };
  return entry;
}

}  // namespace lockstep::recipes
