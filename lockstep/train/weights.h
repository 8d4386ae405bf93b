#pragma once

// Pretrained weights from a safetensors file into a model that is not quite
// the same: another number of classes, another image size, another floating
// type, grey images. Everything that was done is told by name and shape.
// Throws TrainError, naming file and tensor, for what cannot be meant: a shape
// that differs elsewhere, a type that is no floating type, a file none of whose
// tensors the model has.

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/parallel/ddp.h"

namespace lockstep::train {

struct WeightsOptions {
  // Tensors whose shape may differ or that may be absent, by the beginning of
  // their names: ours are kept. Empty: none.
  std::string head = "head.";
  // [1, prefix + side x side, dim]: interpolated to another side.
  std::string positions = "pos_embed";
  int64_t prefix = 1;  // tokens before the patches
  // [dim, channels, h, w]: three channels are summed into one.
  std::string patches = "patch_embed.proj.weight";
  // Whose names these are, for the message when none fits.
  std::string names = "timm";
};

struct WeightsReport {
  std::string file;
  // Each a line: the name with shape, and why.
  std::vector<std::string> loaded{};
  std::vector<std::string> adapted{};  // loaded, but not as they were
  std::vector<std::string> kept{};     // of the head, as initialised
  std::vector<std::string> missing{};  // not in the file: as initialised
  std::vector<std::string> skipped{};  // in the file, not in the model
  // A summary line and one line for each pattern of names.
  std::string to_string() const;
};

WeightsReport load_weights(
    const std::filesystem::path& path,
    const parallel::NamedTensors& tensors,
    const WeightsOptions& options = {});

// [1, prefix + old x old, dim] for side x side patches: bicubic with
// anti-aliasing in fp32, the prefix as it is (as timm does).
at::Tensor
resample_positions(const at::Tensor& positions, int64_t prefix, int64_t side);

}  // namespace lockstep::train
