#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "lockstep/forest/model_file.h"
#include "lockstep/forest/predict.h"
#include "lockstep/forest/turns.h"
#include "lockstep/os/clock.h"
#include "lockstep/recipes/forest.h"
#include "lockstep/recipes/forest_scores.h"
#include "lockstep/recipes/prediction_file.h"
#include "lockstep/record/csv.h"
#include "lockstep/record/png.h"

namespace lockstep::recipes {
namespace {

constexpr size_t kBlockRows = 65536;

std::vector<std::string> facts_of(const forest::Forest& model) {
  size_t nodes = 0;
  for (const auto& tree : model.trees) {
    nodes += tree.nodes.size();
  }
  const auto& classes = model.target.classes;
  std::vector<std::string> facts = {
      fmt::format("{} features", model.features.size()),
      fmt::format("{} classes", classes.size())};
  forest::add_facts(facts, "feature", model.features);
  forest::add_facts(facts, "class", classes);
  facts.push_back(
      fmt::format("{} trees of {} nodes", model.trees.size(), nodes));
  return facts;
}

forest::Forest read_checkpoint(
    const ForestConfig& config,
    collective::Communicator& group) {
  if (config.checkpoint.empty() || config.data.test.empty()) {
    throw train::TrainError(
        train::kBadInput,
        "this verb needs checkpoint=MODEL and data.test=TABLE, e.g. "
        "checkpoint=runs/<id>/checkpoints/last.safetensors");
  }
  auto model = together(forest::read_model(config.checkpoint), group);
  given(
      forest::agree_on_facts(
          "model", config.checkpoint, facts_of(model), group));
  return model;
}

std::string header(const forest::Forest& model, bool probabilities) {
  std::string line = "prediction";
  for (size_t c = 0; probabilities && c < model.target.classes.size(); ++c) {
    line += ',';
    line += record::csv_cell(model.target.classes[c]);
  }
  return line + "\n";
}

// With the digits of the sum: those of a float where nothing is added.
std::string number_text(float value, double offset) {
  return offset == 0 ? fmt::format("{}", value)
                     : fmt::format("{}", offset + static_cast<double>(value));
}

// A line a row; a row with a missing value has an empty one.
std::string lines_of(
    const forest::RowBlock& block,
    const std::vector<float>& values,
    const forest::Forest& model,
    bool probabilities) {
  const auto width = static_cast<size_t>(model.value_width());
  const size_t features = model.features.size();
  const auto classes =
      model.target.classes.empty()
          ? std::vector<int32_t>()
          : forest::classes_of(values, static_cast<int>(width));
  std::vector<std::string> names;
  for (const auto& name : model.target.classes) {
    names.push_back(record::csv_cell(name));
  }
  std::string text;
  for (size_t i = 0; i < block.rows; ++i) {
    bool whole = true;
    for (size_t f = 0; f < features; ++f) {
      whole &= std::isfinite(block.features[i * features + f]);
    }
    if (whole) {
      text += classes.empty() ? number_text(values[i], model.target.offset)
                              : names[static_cast<size_t>(classes[i])];
    }
    for (size_t c = 0; probabilities && !classes.empty() && c < width; ++c) {
      text += whole ? fmt::format(",{}", values[i * width + c]) : ",";
    }
    text += '\n';
  }
  return text;
}

// All that 'predict' reads: the tables of a folder may be links to elsewhere.
Result<std::vector<os::Path>> inputs_of(const ForestConfig& config) {
  LOCKSTEP_ASSIGN(auto inputs, forest::table_files(config.data.test));
  inputs.insert(inputs.end(), {config.data.test, config.checkpoint});
  return inputs;
}

struct RowRange {
  uint64_t first = 0;
  uint64_t last = 0;
};

Result<void> write_predictions(
    const forest::Forest& model,
    forest::TableFile& table,
    RowRange rows,
    bool probabilities,
    int threads,
    PredictionFile& out) {
  const forest::Predictor predictor(model, threads);
  LOCKSTEP_TRY(out.append(header(model, probabilities)));
  for (uint64_t at = rows.first; at < rows.last; at += kBlockRows) {
    LOCKSTEP_ASSIGN(
        const auto block,
        table.read(at, std::min<uint64_t>(kBlockRows, rows.last - at)));
    std::vector<float> values(
        block.rows * static_cast<size_t>(model.value_width()));
    predictor.predict(block.features, values.data(), threads);
    LOCKSTEP_TRY(out.append(lines_of(block, values, model, probabilities)));
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<forest::TableFile>> open_for(
    const std::vector<std::string>& features,
    const std::string& path,
    const std::string& label,
    bool required,
    bool words) {
  LOCKSTEP_ASSIGN(
      auto table, forest::open_table(path, {label, required, features, words}));
  return select_features(std::move(table), features);
}

std::string test_label(const ForestConfig& config, bool trains) {
  const auto& data = config.data;
  if (!data.test_label.empty()) {
    return data.test_label;
  }
  if (data.label.empty() || (trains && forest::is_label_file(data.label))) {
    throw train::TrainError(
        train::kBadInput,
        fmt::format(
            "data.test={} has no labels: those that the forest was trained "
            "with are a file of their own; data.test_label=FILE.npy (one "
            "number a row) or a column's number names them",
            data.test));
  }
  return data.label;
}

forest::Score score_file(
    const std::string& path,
    forest::LoadOptions options,
    const std::string& label,
    const forest::Forest& model,
    int threads,
    collective::Communicator& group) {
  const bool words = forest::are_words(model.target.classes);
  const auto table =
      together(open_for(model.features, path, label, true, words), group);
  options.label = label;
  options.table = path;
  options.classes = model.target.classes;
  options.regression = options.classes.empty();
  auto rows = given(load_rows(*table, options, group));
  for (double& number : rows.numbers) {
    number -= model.target.offset;
  }
  std::vector<float> values(
      rows.num_rows * static_cast<size_t>(model.value_width()));
  const forest::Predictor predictor(model, threads);
  const auto begun = os::real_clock().now();
  predictor.predict(rows.values, values.data(), threads);
  const double seconds = to_seconds(os::real_clock().now() - begun);
  auto score =
      options.regression
          ? forest::score_numbers(values, rows.numbers, group)
          : forest::score_classes(values, rows.classes, model.target, group);
  score.seconds = seconds;
  return score;
}

void note_score(
    const std::string& name,
    const forest::Score& score,
    bool classes,
    std::map<std::string, double>& metrics) {
  if (classes) {
    metrics[name + "_accuracy"] = score.accuracy;
  } else {
    metrics[name + "_r2"] = score.r2;
    metrics[name + "_rmse"] = score.rmse;
  }
}

void print_metrics(const std::map<std::string, double>& metrics) {
  for (const auto& [name, value] : metrics) {
    std::printf("%s %.6g\n", name.c_str(), value);
  }
}

Result<void> write_confusion(
    const record::Confusion& confusion,
    const os::Path& folder) {
  auto& files = os::real_files();
  LOCKSTEP_TRY(files.make_directories(folder));
  LOCKSTEP_TRY(files.write_atomic(
      folder / "confusion.csv", record::confusion_csv(confusion)));
  LOCKSTEP_TRY(files.write_atomic(
      folder / "classes.csv", record::classes_csv(confusion)));
  LOCKSTEP_ASSIGN(
      const auto png, record::encode_png(record::confusion_image(confusion)));
  return files.write_atomic(folder / "confusion.png", png);
}

int test_forest(const ForestConfig& config, const OwnRun& run) {
  const auto model = read_checkpoint(config, *run.group);
  const auto options = fit_options(config, *run.environment);
  forest::LoadOptions load;
  load.drop_missing = config.data.missing == "drop";
  const auto score = score_file(
      config.data.test,
      load,
      test_label(config, /*trains=*/false),
      model,
      options.threads,
      *run.group);
  if (score.rows == 0) {
    throw train::TrainError(
        train::kBadInput,
        fmt::format("data.test={}: no whole row to test on", config.data.test));
  }
  if (run.group->rank() == 0) {
    std::map<std::string, double> metrics;
    const bool classes = !model.target.classes.empty();
    note_score("test", score, classes, metrics);
    print_metrics(metrics);
    if (classes) {
      std::printf("\n%s\n", record::class_table(score.confusion).c_str());
    }
    if (classes && !config.out.empty()) {
      given(write_confusion(score.confusion, config.out));
    }
  }
  return 0;
}

int predict_forest(const ForestConfig& config, const OwnRun& run) {
  auto& group = *run.group;
  const auto model = read_checkpoint(config, group);
  const auto options = fit_options(config, *run.environment);
  // Nobody looks at labels here: a file of them would only have to fit.
  const auto& label = config.data.label;
  const auto table = together(
      open_for(
          model.features,
          config.data.test,
          forest::is_label_file(label) ? "" : label,
          false),
      group);
  given(forest::agree_on_table(*table, config.data.test, group));
  // Each rank its part of the rows, in a file of its own.
  const auto rank = static_cast<uint64_t>(group.rank());
  const auto ranks = static_cast<uint64_t>(group.size());
  const uint64_t first = table->num_rows() * rank / ranks;
  const uint64_t last = table->num_rows() * (rank + 1) / ranks;
  os::Path path = config.predictions;
  if (ranks > 1) {
    path.replace_filename(
        fmt::format(
            "{}-{}{}", path.stem().string(), rank, path.extension().string()));
  }
  auto out = together(
      PredictionFile::open(path, together(inputs_of(config), group)), group);
  Result<void> written;
  forest::work_together(group, [&] {
    written = write_predictions(
        model,
        *table,
        {first, last},
        config.probabilities,
        options.threads,
        out);
  });
  // A rank that fails keeps the others from replacing their files.
  given(forest::agree(written, group));
  given(out.finish());
  std::printf(
      "predictions: %llu rows in %s\n",
      static_cast<unsigned long long>(last - first),
      path.c_str());
  return 0;
}

}  // namespace lockstep::recipes
