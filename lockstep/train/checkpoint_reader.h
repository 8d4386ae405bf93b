#pragma once

// A checkpoint as it lies on the disk, mapped: one safetensors file, or a
// folder of shards (the layout of PyTorch's distributed checkpoints), in which
// each file has parts of tensors and says where they belong. Opening checks
// that everything is there: each file whole, no shard missing, all of one
// step, no hole in a tensor. Throws TrainError that names the file. Any thread.

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/record/safetensors.h"

namespace lockstep::train {

class CheckpointReader {
 public:
  explicit CheckpointReader(const std::filesystem::path& path);

  struct Entry {
    std::string dtype;
    std::vector<int64_t> shape;  // of the whole
    struct Part {
      const record::TensorView* view = nullptr;
      std::vector<int64_t> offsets;
    };
    std::vector<Part> parts;
  };
  const std::map<std::string, Entry>& tensors() const { return tensors_; }
  const Entry* find(const std::string& name) const;
  // Of the file, or of the first shard.
  const record::Metadata& metadata() const { return files_.front().metadata(); }
  const std::string& where() const { return where_; }

  // The whole tensor on the CPU, valid while this lives.
  at::Tensor read(const std::string& name) const;

 private:
  void open_file(const std::filesystem::path& path);
  void open_folder(const std::filesystem::path& path);
  void add_shard(
      const std::filesystem::path& path,
      const record::SafetensorsFile& file);
  std::string where_;
  std::vector<record::SafetensorsFile> files_;
  std::map<std::string, Entry> tensors_;
};

// The format's name of a type, and back; throw TrainError for others.
std::string type_name(at::ScalarType type);
at::ScalarType type_from(const std::string& name);

// "shard-00002-model-00001-of-00001.safetensors" of rank 1, as PyTorch counts.
std::string shard_name(int rank);

}  // namespace lockstep::train
