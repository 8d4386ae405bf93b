#include "lockstep/train/recipe.h"

#include <ATen/Context.h>

#include <cstring>

namespace lockstep::train {
namespace {

// splitmix64: neighbouring seeds give unrelated numbers.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

}  // namespace

parallel::NamedTensors named_parameters(
    const torch::nn::Module& module,
    const std::string& prefix) {
  parallel::NamedTensors list;
  for (const auto& item : module.named_parameters()) {
    list.emplace_back(prefix + item.key(), item.value());
  }
  return list;
}

parallel::NamedTensors named_buffers(
    const torch::nn::Module& module,
    const std::string& prefix) {
  parallel::NamedTensors list;
  for (const auto& item : module.named_buffers()) {
    list.emplace_back(prefix + item.key(), item.value());
  }
  return list;
}

parallel::NamedTensors named_state(
    const torch::nn::Module& module,
    const std::string& prefix) {
  auto list = named_parameters(module, prefix);
  for (auto& item : named_buffers(module, prefix)) {
    list.push_back(std::move(item));
  }
  return list;
}

record::Image grid(const at::Tensor& images, int per_row) {
  const auto bytes = images.detach()
                         .to(at::kCPU, at::kFloat)
                         .add(1)
                         .mul(127.5)
                         .round()
                         .clamp(0, 255)
                         .to(at::kByte)
                         .permute({0, 2, 3, 1})
                         .contiguous();
  std::vector<record::Image> list;
  for (int64_t i = 0; i < bytes.size(0); ++i) {
    record::Image image;
    image.height = static_cast<int>(bytes.size(1));
    image.width = static_cast<int>(bytes.size(2));
    image.channels = static_cast<int>(bytes.size(3));
    const auto one = bytes[i];
    const auto* pixels = one.data_ptr<uint8_t>();
    image.pixels.assign(pixels, pixels + one.numel());
    list.push_back(std::move(image));
  }
  return record::make_grid(list, per_row);
}

void seed_step(int64_t seed, int rank, int64_t step) {
  const uint64_t mixed =
      mix(mix(mix(static_cast<uint64_t>(seed)) + static_cast<uint64_t>(rank)) +
          static_cast<uint64_t>(step));
  at::manual_seed(mixed);
}

}  // namespace lockstep::train
