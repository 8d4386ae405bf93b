#include "lockstep/recipes/pixel_reader.h"

#include <torch/types.h>

#include "lockstep/data/resize_weights.h"
#include "lockstep/kernels/images.h"
#include "lockstep/models/launch.h"

namespace lockstep::recipes {

const PixelReader::Axis& PixelReader::axis_of(
    int64_t input,
    c10::Device device) {
  auto found = axes_.find(input);
  if (found == axes_.end()) {
    const auto made = data::make_axis(
        static_cast<int>(input),
        static_cast<int>(options_.size),
        data::Resize::kBilinear);
    Axis axis;
    axis.taps = made.taps;
    axis.first = at::tensor(made.first, at::kInt).to(device);
    axis.weights = at::tensor(made.weights).to(device);
    found = axes_.emplace(input, std::move(axis)).first;
  }
  return found->second;
}

at::Tensor PixelReader::read(
    const at::Tensor& images,
    const at::Tensor& moves) {
  const int64_t side = options_.size / options_.patch;
  kernels::ImageBatch b;
  b.pixels = images.data_ptr<uint8_t>();
  b.count = images.size(0);
  b.channels = static_cast<int>(images.size(1));
  b.height = static_cast<int>(images.size(2));
  b.width = static_cast<int>(images.size(3));
  b.size = static_cast<int>(options_.size);
  b.patch = static_cast<int>(options_.patch);
  b.lead = static_cast<int>(options_.lead);
  const Axis& rows = axis_of(b.height, images.device());
  const Axis& columns = axis_of(b.width, images.device());
  b.rows = {
      rows.taps, rows.first.data_ptr<int>(), rows.weights.data_ptr<float>()};
  b.columns = {
      columns.taps,
      columns.first.data_ptr<int>(),
      columns.weights.data_ptr<float>()};
  if (moves.defined()) {
    b.moves = moves.data_ptr<int32_t>();
    b.padding = static_cast<int>(options_.padding);
  }
  for (size_t c = 0; c < 3; ++c) {
    b.scale[c] = 1 / (255 * options_.stddev[c]);
    b.shift[c] = -options_.mean[c] / options_.stddev[c];
  }
  const auto type = images.is_cuda() ? at::kBFloat16 : at::kFloat;
  auto out = at::empty(
      {b.count * (options_.lead + side * side),
       options_.patch * options_.patch * b.channels},
      at::TensorOptions().device(images.device()).dtype(type));
  b.type = models::kernel_type(out);
  b.out = out.data_ptr();
  models::launch(
      out, kernels::cpu::prepare_images, kernels::cuda::prepare_images, b);
  return out;
}

at::Tensor PixelReader::read_images(const at::Tensor& images) {
  return read(images, at::Tensor())
      .view({images.size(0), options_.size, options_.size, images.size(1)})
      .permute({0, 3, 1, 2});
}

}  // namespace lockstep::recipes
