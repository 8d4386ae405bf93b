#include "lockstep/train/checkpoint.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <charconv>
#include <map>

#include "lockstep/base/log.h"
#include "lockstep/record/safetensors.h"
#include "lockstep/train/error.h"

namespace lockstep::train {
namespace {

constexpr std::string_view kPrefix = "lockstep.";

struct TypeName {
  at::ScalarType type;
  const char* name;
};
constexpr TypeName kTypes[] = {
    {at::kFloat, "F32"},
    {at::kBFloat16, "BF16"},
    {at::kHalf, "F16"},
    {at::kDouble, "F64"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
};

std::string type_name(at::ScalarType type) {
  for (const auto& entry : kTypes) {
    if (entry.type == type) {
      return entry.name;
    }
  }
  throw TrainError(
      kFailed, std::string("no checkpoint type for ") + c10::toString(type));
}

std::string shape_text(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

// All tensors of a state with the names they have in the file.
parallel::NamedTensors in_file(
    const CheckpointState& state,
    bool weights_only) {
  auto all = state.tensors;
  if (!weights_only) {
    for (const auto& [name, tensor] : state.extra) {
      all.emplace_back(std::string(kPrefix) + name, tensor);
    }
  }
  return all;
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

void fill(
    const at::Tensor& tensor,
    const record::TensorView& view,
    const std::string& path) {
  if (view.dtype != type_name(tensor.scalar_type()) ||
      at::IntArrayRef(view.shape) != tensor.sizes()) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: tensor '{}' is {} {}, but the model has {} {}",
            path,
            view.name,
            view.dtype,
            shape_text(view.shape),
            type_name(tensor.scalar_type()),
            shape_text(tensor.sizes())));
  }
  const auto source = at::from_blob(
      const_cast<std::byte*>(view.bytes.data()),
      tensor.sizes(),
      tensor.options().device(at::kCPU).requires_grad(false));
  tensor.copy_(source);
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

}  // namespace

void save_checkpoint(
    const std::filesystem::path& path,
    const CheckpointState& state,
    const Progress& progress) {
  std::vector<at::Tensor> dense;  // holds the bytes that the views point at
  std::vector<record::TensorView> views;
  for (const auto& [name, tensor] : in_file(state, false)) {
    dense.push_back(tensor.detach().to(at::kCPU).contiguous());
    const auto& kept = dense.back();
    views.push_back(
        {name,
         type_name(kept.scalar_type()),
         kept.sizes().vec(),
         {static_cast<const std::byte*>(kept.data_ptr()),
          static_cast<size_t>(kept.nbytes())}});
  }
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
  if (progress.best) {
    metadata["lockstep.best"] = fmt::format("{}", *progress.best);
  }
  const auto written =
      record::write_safetensors(os::real_files(), path, views, metadata);
  if (!written) {
    throw TrainError(
        kFailed, "writing the checkpoint: " + written.error().to_string());
  }
}

void link_checkpoint(
    const std::filesystem::path& path,
    const std::filesystem::path& link) {
  const auto temporary = link.parent_path() / fmt::format(".link-{}", getpid());
  std::error_code failure;
  std::filesystem::remove(temporary, failure);
  std::filesystem::create_hard_link(path, temporary, failure);
  if (failure) {
    std::filesystem::copy_file(path, temporary, failure);
  }
  if (!failure) {
    std::filesystem::rename(temporary, link, failure);
  }
  if (failure) {
    throw TrainError(
        kFailed,
        fmt::format(
            "writing the checkpoint {}: {}", link.string(), failure.message()));
  }
}

Progress load_checkpoint(
    const std::filesystem::path& path,
    const CheckpointState& state,
    bool weights_only) {
  at::NoGradGuard no_grad;
  const auto file = record::SafetensorsFile::open(path);
  if (!file) {
    throw TrainError(kBadInput, file.error().to_string());
  }
  const auto& metadata = file->metadata();
  const std::string where = path.string();
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
  const auto wanted = in_file(state, weights_only);
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : wanted) {
    if (file->find(name) == nullptr) {
      missing.push_back(name);
    }
  }
  if (!missing.empty()) {
    throw TrainError(
        kBadInput,
        fmt::format("{}: lacks tensor {}", where, first_few(missing)));
  }
  std::vector<std::string> unknown;
  std::map<std::string, at::Tensor> by_name(wanted.begin(), wanted.end());
  for (const auto& view : file->tensors()) {
    const bool other_part = weights_only && view.name.starts_with(kPrefix);
    if (!by_name.contains(view.name) && !other_part) {
      unknown.push_back(view.name);
    }
  }
  if (!unknown.empty()) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "{}: has tensor {} that the model does not",
            where,
            first_few(unknown)));
  }
  Progress progress;
  if (!weights_only) {
    progress.step = whole(metadata, "lockstep.step", where);
    progress.epoch = whole(metadata, "lockstep.epoch", where);
    progress.samples_in_epoch =
        whole(metadata, "lockstep.samples_in_epoch", where);
    progress.best = real(metadata, "lockstep.best");
    progress.seconds = real(metadata, "lockstep.seconds").value_or(0);
  }
  for (const auto& [name, tensor] : wanted) {
    fill(tensor, *file->find(name), where);
  }
  return progress;
}

void share_state(
    const CheckpointState& state,
    Progress& progress,
    collective::Communicator& group) {
  parallel::broadcast(state.tensors, group);
  parallel::broadcast(state.extra, group);
  int64_t counts[] = {
      progress.step,
      progress.epoch,
      progress.samples_in_epoch,
      progress.best.has_value()};
  double reals[] = {progress.best.value_or(0), progress.seconds};
  group.broadcast(counts, 4, collective::DataType::kInt64, 0);
  group.broadcast(reals, 2, collective::DataType::kFloat64, 0);
  progress.step = counts[0];
  progress.epoch = counts[1];
  progress.samples_in_epoch = counts[2];
  progress.best =
      counts[3] != 0 ? std::optional<double>(reals[0]) : std::nullopt;
  progress.seconds = reals[1];
}

}  // namespace lockstep::train
