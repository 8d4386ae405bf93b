#include "lockstep/train/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/train/checkpoint_reader.h"
#include "lockstep/train/error.h"

namespace lockstep::train {
namespace {

constexpr std::string_view kPrefix = "lockstep.";

std::string shape_text(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

int64_t whole(
    const record::Metadata& metadata,
    const std::string& key,
    const std::string& path) {
  const auto found = metadata.find(key);
  int64_t value = -1;
  if (found != metadata.end()) {
    const auto& text = found->second;
    std::from_chars(text.data(), text.data() + text.size(), value);
  }
  if (value < 0) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: metadata '{}' is missing or not a number: not a lockstep "
            "checkpoint",
            path,
            key));
  }
  return value;
}

std::optional<double> real(
    const record::Metadata& metadata,
    const std::string& key) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) {
    return {};
  }
  double value = 0;
  const auto& text = found->second;
  const auto [end, failure] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc()) {
    return {};
  }
  return value;
}

// Scalars of a folder of shards have one dimension.
bool same_shape(at::IntArrayRef there, at::IntArrayRef wanted) {
  return there == wanted || (wanted.empty() && there == at::IntArrayRef({1}));
}

void check_tensor(
    const CheckpointReader& reader,
    const std::string& name,
    at::ScalarType type,
    at::IntArrayRef sizes) {
  const auto& entry = *reader.find(name);
  if (entry.dtype != type_name(type) || !same_shape(entry.shape, sizes)) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: tensor '{}' is {} {}, but the model has {} {}",
            reader.where(),
            name,
            entry.dtype,
            shape_text(entry.shape),
            type_name(type),
            shape_text(sizes)));
  }
}

[[noreturn]] void fail_to_write(
    const std::filesystem::path& path,
    const std::error_code& failure) {
  throw TrainError(
      kFailed,
      fmt::format(
          "writing the checkpoint {}: {}", path.string(), failure.message()));
}

std::string first_few(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 3; ++i) {
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  }
  return names.size() > 3
             ? fmt::format("{} and {} more", text, names.size() - 3)
             : text;
}

// The key to set where all that a checkpoint lacks, or has too much, belongs to
// one; else nothing.
std::string key_for(const std::vector<std::string>& names, bool missing) {
  const auto all_in = [&names](std::string_view prefix) {
    return std::ranges::all_of(names, [prefix](const std::string& name) {
      return name.starts_with(prefix);
    });
  };
  if (all_in("lockstep.raw.")) {
    return missing ? "; its run kept no average of weights: ema=0"
                   : "; its run kept an average of weights: set ema= as there";
  }
  return all_in("lockstep.optim.")
             ? "; its run had another optimiser: set optim.name= as there"
             : "";
}

// Of any bytes: names of folders need not be UTF-8.
std::string classes_text(const std::vector<std::string>& classes) {
  return nlohmann::json(classes).dump(
      -1, ' ', true, nlohmann::json::error_handler_t::replace);
}

// Checkpoints from before have no names.
void check_classes(
    const CheckpointReader& reader,
    const std::vector<std::string>& ours) {
  const auto found = reader.metadata().find("lockstep.classes");
  if (found == reader.metadata().end() || ours.empty() ||
      found->second == classes_text(ours)) {
    return;
  }
  auto theirs = nlohmann::json::parse(found->second, nullptr, false);
  if (!theirs.is_array()) {
    theirs = nlohmann::json::array();
  }
  const auto wanted = nlohmann::json::parse(classes_text(ours));
  size_t at = 0;
  while (at < ours.size() && at < theirs.size() && theirs[at] == wanted[at]) {
    ++at;
  }
  // dump() calls itself for each level of what is nested.
  const auto shown = [](const nlohmann::json& name) {
    return name.is_string() ? name.dump() : "no name";
  };
  throw TrainError(
      kBadInput,
      fmt::format(
          "{}: is of {} classes, class {} being {}, and the data has {}, that "
          "one being {}; both need the same",
          reader.where(),
          theirs.size(),
          at,
          at < theirs.size() ? shown(theirs[at]) : "none",
          ours.size(),
          at < ours.size() ? wanted[at].dump() : "none"));
}

// Checkpoints from before do not say.
void check_model(const CheckpointReader& reader, const std::string& ours) {
  const auto found = reader.metadata().find("lockstep.model");
  if (found != reader.metadata().end() && found->second != ours) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: is of a model with {}, and this one has {}",
            reader.where(),
            found->second,
            ours.empty() ? "none of it" : ours));
  }
}

}  // namespace

std::vector<FileTensor> in_file(
    const CheckpointState& state,
    bool weights_only) {
  std::vector<FileTensor> all;
  for (const auto& [name, tensor] : state.tensors) {
    all.push_back({name, name, tensor});
  }
  if (!weights_only) {
    for (const auto& [name, tensor] : state.extra) {
      all.push_back({name, std::string(kPrefix) + name, tensor});
    }
  }
  return all;
}

record::Metadata describe(
    const CheckpointState& state,
    const Progress& progress) {
  record::Metadata metadata = {
      {"format", "pt"},
      {"lockstep.version", "1"},
      {"lockstep.recipe", state.recipe},
      {"lockstep.config", state.config},
      {"lockstep.step", std::to_string(progress.step)},
      {"lockstep.epoch", std::to_string(progress.epoch)},
      {"lockstep.samples_in_epoch", std::to_string(progress.samples_in_epoch)},
      {"lockstep.seconds", fmt::format("{}", progress.seconds)},
  };
  if (!state.run.empty()) {
    metadata["lockstep.run"] = state.run;
  }
  if (!state.classes.empty()) {
    metadata["lockstep.classes"] = classes_text(state.classes);
  }
  if (!state.model.empty()) {
    metadata["lockstep.model"] = state.model;
  }
  if (progress.best) {
    metadata["lockstep.best"] = fmt::format("{}", *progress.best);
    metadata["lockstep.since_best"] = std::to_string(progress.since_best);
  }
  return metadata;
}

bool is_checkpoint_of(
    const std::filesystem::path& path,
    const std::string& run) {
  const auto metadata = CheckpointReader(path).metadata();
  const auto found = metadata.find("lockstep.run");
  return found != metadata.end() && found->second == run;
}

uint64_t whole_bytes(const CheckpointState& state) {
  uint64_t sum = 0;
  for (const auto* tensors : {&state.tensors, &state.extra}) {
    for (const auto& [name, tensor] : *tensors) {
      const auto placed = state.placements.find(name);
      const int64_t count = placed == state.placements.end()
                                ? tensor.numel()
                                : c10::multiply_integers(placed->second.sizes);
      sum += static_cast<uint64_t>(count) * tensor.element_size();
    }
  }
  return sum;
}

void save_checkpoint(
    const std::filesystem::path& path,
    const CheckpointState& state,
    const Progress& progress) {
  std::vector<at::Tensor> dense;  // holds the bytes that the views point at
  std::vector<record::TensorView> views;
  for (const auto& [name, file_name, tensor] : in_file(state)) {
    dense.push_back(tensor.detach().to(at::kCPU).contiguous());
    const auto& kept = dense.back();
    views.push_back(
        {file_name,
         type_name(kept.scalar_type()),
         kept.sizes().vec(),
         {static_cast<const std::byte*>(kept.data_ptr()),
          static_cast<size_t>(kept.nbytes())}});
  }
  std::error_code absent;
  const bool was_folder = std::filesystem::is_directory(path, absent);
  const auto target = was_folder ? unfinished(path) : path;
  if (was_folder) {
    std::filesystem::remove_all(target, absent);
  }
  const auto written = record::write_safetensors(
      os::real_files(), target, views, describe(state, progress));
  if (!written) {
    throw TrainError(
        kFailed, "writing the checkpoint: " + written.error().to_string());
  }
  if (was_folder) {
    replace_checkpoint(target, path);
  }
}

std::filesystem::path unfinished(const std::filesystem::path& path) {
  return path.parent_path() / fmt::format(".{}.new", path.filename().string());
}

void replace_checkpoint(
    const std::filesystem::path& made,
    const std::filesystem::path& path) {
  std::error_code failure;
  const bool folders = std::filesystem::is_directory(made, failure) ||
                       std::filesystem::is_directory(path, failure);
  if (!folders || !std::filesystem::exists(path, failure)) {
    std::filesystem::rename(made, path, failure);
    if (failure) {
      fail_to_write(path, failure);
    }
    return;
  }
  // A folder cannot be renamed over another: the two change places at once.
  if (renameat2(
          AT_FDCWD, made.c_str(), AT_FDCWD, path.c_str(), RENAME_EXCHANGE) !=
      0) {
    if (errno != EINVAL && errno != ENOSYS) {
      fail_to_write(path, {errno, std::generic_category()});
    }
    // A file system without that: for a moment only the old one's other name
    // is there.
    const auto old = made.string() + ".old";
    std::filesystem::remove_all(old, failure);
    std::filesystem::rename(path, old, failure);
    if (!failure) {
      std::filesystem::rename(made, path, failure);
    }
    if (failure) {
      fail_to_write(path, failure);
    }
    std::filesystem::remove_all(old, failure);
    return;
  }
  std::filesystem::remove_all(made, failure);
}

void link_checkpoint(
    const std::filesystem::path& path,
    const std::filesystem::path& link) {
  namespace fs = std::filesystem;
  const auto made = unfinished(link);
  std::error_code failure;
  fs::remove_all(made, failure);
  const auto copy = [&](const fs::path& from, const fs::path& to) {
    fs::create_hard_link(from, to, failure);
    if (failure) {
      fs::copy_file(from, to, failure);
    }
  };
  if (fs::is_directory(path, failure)) {
    fs::create_directory(made, failure);
    if (!failure) {
      for (const auto& item : fs::directory_iterator(path, failure)) {
        if (!failure) {
          copy(item.path(), made / item.path().filename());
        }
      }
    }
  } else {
    copy(path, made);
  }
  if (failure) {
    fail_to_write(link, failure);
  }
  replace_checkpoint(made, link);
}

Progress check_fits(
    const CheckpointReader& reader,
    const CheckpointState& state,
    bool weights_only) {
  const auto& metadata = reader.metadata();
  const std::string& where = reader.where();
  const auto recipe = metadata.find("lockstep.recipe");
  if (recipe != metadata.end() && recipe->second != state.recipe) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: is a checkpoint of recipe '{}', not of '{}'",
            where,
            recipe->second,
            state.recipe));
  }
  check_classes(reader, state.classes);
  const auto wanted = in_file(state, weights_only);
  std::set<std::string> known;
  std::vector<std::string> missing;
  for (const auto& item : wanted) {
    known.insert(item.file_name);
    if (reader.find(item.file_name) == nullptr) {
      missing.push_back(item.file_name);
    }
  }
  if (!missing.empty()) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: lacks tensor {}{}",
            where,
            first_few(missing),
            key_for(missing, true)));
  }
  std::vector<std::string> unknown;
  for (const auto& [name, entry] : reader.tensors()) {
    const bool other_part = weights_only && name.starts_with(kPrefix);
    if (!known.contains(name) && !other_part) {
      unknown.push_back(name);
    }
  }
  if (!unknown.empty()) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: has tensor {} that the model does not{}",
            where,
            first_few(unknown),
            key_for(unknown, false)));
  }
  Progress progress;
  if (!weights_only) {
    progress.step = whole(metadata, "lockstep.step", where);
    progress.epoch = whole(metadata, "lockstep.epoch", where);
    progress.samples_in_epoch =
        whole(metadata, "lockstep.samples_in_epoch", where);
    progress.best = real(metadata, "lockstep.best");
    progress.since_best =
        static_cast<int64_t>(real(metadata, "lockstep.since_best").value_or(0));
    progress.seconds = real(metadata, "lockstep.seconds").value_or(0);
  }
  for (const auto& item : wanted) {
    const auto placed = state.placements.find(item.name);
    check_tensor(
        reader,
        item.file_name,
        item.tensor.scalar_type(),
        placed == state.placements.end() ? item.tensor.sizes()
                                         : placed->second.sizes);
  }
  check_model(reader, state.model);
  return progress;
}

void copy_in(const at::Tensor& tensor, const at::Tensor& source) {
  tensor.copy_(source.view(tensor.sizes()));
}

Progress load_checkpoint(
    const std::filesystem::path& path,
    const CheckpointState& state,
    bool weights_only) {
  at::NoGradGuard no_grad;
  const CheckpointReader reader(path);
  const auto progress = check_fits(reader, state, weights_only);
  for (const auto& item : in_file(state, weights_only)) {
    copy_in(item.tensor, reader.read(item.file_name));
  }
  return progress;
}

void share_state(
    const CheckpointState& state,
    Progress& progress,
    collective::Communicator& group) {
  for (const auto* list : {&state.tensors, &state.extra}) {
    parallel::NamedTensors equal;
    for (const auto& item : *list) {
      if (!state.placements.contains(item.first)) {
        equal.push_back(item);
      }
    }
    parallel::broadcast(equal, group);
  }
  int64_t counts[] = {
      progress.step,
      progress.epoch,
      progress.samples_in_epoch,
      progress.best.has_value(),
      progress.since_best};
  double reals[] = {progress.best.value_or(0), progress.seconds};
  group.broadcast(counts, 5, collective::DataType::kInt64, 0);
  group.broadcast(reals, 2, collective::DataType::kFloat64, 0);
  progress.step = counts[0];
  progress.epoch = counts[1];
  progress.samples_in_epoch = counts[2];
  progress.since_best = counts[4];
  progress.best =
      counts[3] != 0 ? std::optional<double>(reals[0]) : std::nullopt;
  progress.seconds = reals[1];
}

}  // namespace lockstep::train
