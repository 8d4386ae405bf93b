#include "lockstep/train/checkpoint_reader.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/train/error.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

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

[[noreturn]] void refuse(const std::string& what) {
  throw TrainError(kBadInput, what);
}

record::SafetensorsFile open_or_throw(const fs::path& path) {
  auto file = record::SafetensorsFile::open(path);
  if (!file) {
    refuse(file.error().to_string());
  }
  return std::move(*file);
}

std::string value_of(const record::Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

at::Tensor seen(const record::TensorView& view) {
  return at::from_blob(
      const_cast<std::byte*>(view.bytes.data()),
      view.shape,
      at::TensorOptions().dtype(type_from(view.dtype)));
}

int64_t elements(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t extent : shape) {
    count *= extent;
  }
  return count;
}

}  // namespace

std::string type_name(at::ScalarType type) {
  for (const auto& entry : kTypes) {
    if (entry.type == type) {
      return entry.name;
    }
  }
  throw TrainError(
      kFailed, std::string("no checkpoint type for ") + c10::toString(type));
}

at::ScalarType type_from(const std::string& name) {
  for (const auto& entry : kTypes) {
    if (name == entry.name) {
      return entry.type;
    }
  }
  refuse(fmt::format("tensors of type {} are not read here", name));
}

std::string shard_name(int rank) {
  return fmt::format("shard-{:05}-model-00001-of-00001.safetensors", rank + 1);
}

CheckpointReader::CheckpointReader(const fs::path& path)
    : where_(path.string()) {
  std::error_code absent;
  fs::is_directory(path, absent) ? open_folder(path) : open_file(path);
}

void CheckpointReader::open_file(const fs::path& path) {
  files_.push_back(open_or_throw(path));
  for (const auto& view : files_.front().tensors()) {
    tensors_[view.name] = {
        view.dtype,
        view.shape,
        {{&view, std::vector<int64_t>(view.shape.size())}}};
  }
}

void CheckpointReader::open_folder(const fs::path& path) {
  std::vector<fs::path> paths;
  std::error_code failure;
  for (const auto& item : fs::directory_iterator(path, failure)) {
    const std::string name = item.path().filename().string();
    if (name.starts_with("shard-") && name.ends_with(".safetensors")) {
      paths.push_back(item.path());
    }
  }
  if (failure) {
    refuse(fmt::format("{}: {}", where_, failure.message()));
  }
  if (paths.empty()) {
    refuse(
        fmt::format(
            "{}: is a folder without shards (shard-*.safetensors): not a "
            "checkpoint",
            where_));
  }
  std::sort(paths.begin(), paths.end());
  for (const auto& one : paths) {
    files_.push_back(open_or_throw(one));
  }
  // Only now: views point into the files, which must not move any more.
  for (size_t i = 0; i < paths.size(); ++i) {
    add_shard(paths[i], files_[i]);
  }
  const std::string count = value_of(metadata(), "lockstep.shards");
  const int expected = count.empty() ? 0 : std::atoi(count.c_str());
  for (int rank = 0; rank < expected; ++rank) {
    if (std::find(paths.begin(), paths.end(), path / shard_name(rank)) ==
        paths.end()) {
      refuse(
          fmt::format(
              "{}: is missing; the checkpoint was written by {} ranks, one "
              "file each",
              (path / shard_name(rank)).string(),
              expected));
    }
  }
  if (expected > 0 && paths.size() != static_cast<size_t>(expected)) {
    refuse(
        fmt::format(
            "{}: has {} shards, but was written by {} ranks; remove what does "
            "not belong there",
            where_,
            paths.size(),
            expected));
  }
  for (const auto& [name, entry] : tensors_) {
    int64_t held = 0;
    for (const auto& part : entry.parts) {
      held += elements(part.view->shape);
    }
    if (held != elements(entry.shape)) {
      refuse(
          fmt::format(
              "{}: the shards have {} of the {} elements of tensor '{}'",
              where_,
              held,
              elements(entry.shape),
              name));
    }
  }
}

void CheckpointReader::add_shard(
    const fs::path& path,
    const record::SafetensorsFile& file) {
  const std::string shown = path.string();
  for (const char* key :
       {"lockstep.shards",
        "lockstep.step",
        "lockstep.recipe",
        "lockstep.run"}) {
    if (value_of(file.metadata(), key) != value_of(metadata(), key)) {
      refuse(
          fmt::format(
              "{}: its '{}' is '{}', that of the other shards '{}': they are "
              "not of one checkpoint",
              shown,
              key,
              value_of(file.metadata(), key),
              value_of(metadata(), key)));
    }
  }
  const auto info = nlohmann::json::parse(
      value_of(file.metadata(), "DCP_SHARDING_INFO"), nullptr, false);
  for (const auto& view : file.tensors()) {
    std::vector<int64_t> offsets;
    if (info.is_object() && info.contains(view.name) &&
        info[view.name].is_object() &&
        info[view.name].contains("saved_offsets") &&
        info[view.name]["saved_offsets"].is_array()) {
      for (const auto& offset : info[view.name]["saved_offsets"]) {
        offsets.push_back(
            offset.is_number_unsigned() ? offset.get<int64_t>() : -1);
      }
    }
    if (offsets.size() != view.shape.size() ||
        std::any_of(offsets.begin(), offsets.end(), [](int64_t offset) {
          return offset < 0 || offset > (int64_t{1} << 48);
        })) {
      refuse(
          fmt::format(
              "{}: metadata 'DCP_SHARDING_INFO' does not say where tensor "
              "'{}' belongs",
              shown,
              view.name));
    }
    auto& entry = tensors_[view.name];
    if (entry.parts.empty()) {
      entry.dtype = view.dtype;
      entry.shape.assign(view.shape.size(), 0);
    }
    if (entry.dtype != view.dtype || entry.shape.size() != view.shape.size()) {
      refuse(
          fmt::format(
              "{}: tensor '{}' has another type or number of dimensions than "
              "in the other shards",
              shown,
              view.name));
    }
    for (size_t i = 0; i < offsets.size(); ++i) {
      entry.shape[i] = std::max(entry.shape[i], offsets[i] + view.shape[i]);
    }
    entry.parts.push_back({&view, std::move(offsets)});
  }
}

const CheckpointReader::Entry* CheckpointReader::find(
    const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

at::Tensor CheckpointReader::read(const std::string& name) const {
  const Entry& entry = tensors_.at(name);
  if (entry.parts.size() == 1) {
    return seen(*entry.parts.front().view);
  }
  const auto whole =
      at::empty(entry.shape, at::TensorOptions().dtype(type_from(entry.dtype)));
  for (const auto& part : entry.parts) {
    auto target = whole;
    for (size_t i = 0; i < part.offsets.size(); ++i) {
      target = target.narrow(
          static_cast<int64_t>(i), part.offsets[i], part.view->shape[i]);
    }
    target.copy_(seen(*part.view));
  }
  return whole;
}

}  // namespace lockstep::train
