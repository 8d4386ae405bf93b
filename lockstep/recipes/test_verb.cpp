#include "lockstep/recipes/test_verb.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "lockstep/base/log.h"
#include "lockstep/forest/table_file.h"
#include "lockstep/os/file.h"
#include "lockstep/os/process.h"
#include "lockstep/record/confusion.h"
#include "lockstep/train/checkpoint_group.h"
#include "lockstep/train/checkpoint_reader.h"
#include "lockstep/train/error.h"

namespace lockstep::recipes {
namespace {

namespace fs = std::filesystem;

using train::kBadInput;
using train::kFailed;
using train::TrainError;

constexpr const char* kConfusionFiles =
    "{classes,confusion}.csv, confusion.png";

// out=DIR, else test/ in the run that the checkpoint is of.
fs::path test_folder(const Prepared& prepared) {
  if (!prepared.out.empty()) {
    return prepared.out;
  }
  fs::path file = prepared.checkpoint;
  if (file.filename().empty()) {
    file = file.parent_path();
  }
  const auto beside = fs::absolute(file).parent_path();
  return (beside.filename() == "checkpoints" ? beside.parent_path() : beside) /
         "test";
}

Result<void> write_confusion(
    const record::Confusion& confusion,
    const fs::path& folder) {
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

// Labels in a file are of one table, and that of the command is another.
void forget_label_files(config::Node& data, const Command& command) {
  const config::Node* label = data.find("label");
  if (label != nullptr && forest::is_label_file(label->text())) {
    data.set("label", config::Node::scalar("", label->place(), true));
  }
  for (const auto& word : command.arguments) {
    if (word.starts_with("data.test=")) {
      data.erase("test_label");
    }
  }
}

}  // namespace

std::string named_checkpoint(const Command& command) {
  constexpr std::string_view kKey = "checkpoint=";
  std::string path;
  for (const auto& word : command.arguments) {
    if (word.starts_with(kKey)) {
      path = word.substr(kKey.size());
    }
  }
  const auto node = config::Node::scalar(std::move(path), {});
  return config::with_home(node, os::home_folder()).text();
}

std::string checkpoint_failure(
    const std::string& path,
    const std::string& recipe) {
  if (path.empty()) {
    return "'test' needs checkpoint=FILE, e.g. "
           "checkpoint=runs/<id>/checkpoints/best.safetensors";
  }
  try {
    const train::CheckpointReader reader(path);
    const auto of = reader.metadata().find("lockstep.recipe");
    return of == reader.metadata().end() || of->second == recipe
               ? ""
               : fmt::format(
                     "{} is of the recipe '{}', not of '{}'",
                     path,
                     of->second,
                     recipe);
  } catch (const TrainError& failure) {
    return failure.what();
  }
}

std::string trained_config(const Command& command) {
  const std::string path = named_checkpoint(command);
  if (path.empty()) {
    return "";
  }
  try {
    const train::CheckpointReader reader(path);
    const auto& metadata = reader.metadata();
    const auto recipe = metadata.find("lockstep.recipe");
    const auto config = metadata.find("lockstep.config");
    const bool ours = recipe != metadata.end() && config != metadata.end() &&
                      recipe->second == command.recipe;
    return ours ? config->second : "";
  } catch (const TrainError&) {
    return "";  // told when its tensors are read
  }
}

Result<config::Node> trained_base(
    const std::string& trained,
    const Command& command) {
  LOCKSTEP_ASSIGN(
      config::Node base,
      config::parse_yaml(trained, "the checkpoint's configuration"));
  base.erase("out");
  base.erase("checkpoint");
  if (config::Node* trainer = base.find("trainer")) {
    config::Node kept = config::Node::map(trainer->place());
    for (const char* key : {"precision", "seed"}) {
      if (const config::Node* value = trainer->find(key)) {
        kept.set(key, *value);
      }
    }
    base.set("trainer", std::move(kept));
  }
  // A batch that suited other machines; the test has one of its own.
  if (config::Node* data = base.find("data")) {
    data->erase("batch_size");
    data->erase("global_batch_size");
    forget_label_files(*data, command);
  }
  if (config::Node* forest = base.find("forest")) {
    forest->erase("threads");
  }
  return base;
}

int test_checkpoint(
    const Prepared& prepared,
    train::Recipe& recipe,
    const train::Context& context) {
  // Only rank 0's disk matters, as when a run is resumed.
  train::restore_together(
      prepared.checkpoint,
      {recipe.name(),
       prepared.config,
       recipe.tensors(),
       {},
       recipe.placements(),
       {},
       recipe.classes(),
       recipe.model()},
      *context.group,
      /*weights_only=*/true);
  const auto result = recipe.evaluate();
  train::agree_on_images(recipe.datasets(), *context.group);
  if (result.values.empty()) {
    throw TrainError(kBadInput, "'test' found no held-out samples");
  }
  if (context.rank() != 0) {
    return 0;
  }
  for (const auto& [name, value] : result.values) {
    std::printf("%s %.6g\n", name.c_str(), value);
  }
  if (result.confusion) {
    std::printf("\n%s\n", record::class_table(*result.confusion).c_str());
    const fs::path folder = test_folder(prepared);
    const auto written = write_confusion(*result.confusion, folder);
    if (written) {
      std::printf("written: %s\n", (folder / kConfusionFiles).c_str());
    } else if (!prepared.out.empty()) {
      throw TrainError(kFailed, written.error().to_string());
    } else {
      log_warning(
          written.error().to_string() + "; out=DIR writes it elsewhere");
    }
  }
  return 0;
}

}  // namespace lockstep::recipes
