#include "lockstep/kernels/images.h"

#include "lockstep/kernels/device.cuh"

namespace lockstep::kernels {
namespace {

using cuda::bf16;

constexpr int kWarps = 8;
constexpr int kMostRowFloats = 1536;  // of one input row, a warp's buffer

// A block a sample, a warp an output row at a time: the input rows that it
// needs are blended into the warp's buffer, then across.
template <int kVector>
__global__ void __launch_bounds__(kWarps * 32) prepare(ImageBatch b) {
  extern __shared__ float buffers[];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int row_floats = b.width * b.channels;
  float* const buffer = buffers + warp * row_floats;
  const int64_t sample = blockIdx.x;
  const int64_t index = b.indices != nullptr ? b.indices[sample] : sample;
  const uint8_t* image =
      b.pixels + index * b.height * static_cast<int64_t>(row_floats);
  const bool mirror = b.moves != nullptr && b.moves[3 * sample] != 0;
  const int down =
      b.moves != nullptr ? b.moves[3 * sample + 1] - b.padding : 0;
  const int across =
      b.moves != nullptr ? b.moves[3 * sample + 2] - b.padding : 0;
  const int side = b.size / b.patch;
  const int patch_row = b.patch * b.channels;  // of one output row of a patch
  const int64_t patch_size = static_cast<int64_t>(b.patch) * patch_row;
  bf16* const out = static_cast<bf16*>(b.out) +
                    sample * (b.lead + side * side) * patch_size;
  using Raw = typename cuda::Pack<kVector>::Raw;
  for (int64_t i = threadIdx.x; i < b.lead * patch_size / kVector;
       i += kWarps * 32) {
    reinterpret_cast<Raw*>(out)[i] = Raw{};
  }
  const int vectors = patch_row / kVector;  // a patch and row
  for (int y = warp; y < b.size; y += kWarps) {
    const int top = b.rows.first[y] + down;
    const float* weights = b.rows.weights + y * b.rows.taps;
    __syncwarp();
    for (int i = lane; i < row_floats; i += 32) {
      int column = i / b.channels;
      const int channel = i - column * b.channels;
      if (mirror) {
        column = b.width - 1 - column;
      }
      column += across;
      float value = 0;
      if (column >= 0 && column < b.width) {
        for (int t = 0; t < b.rows.taps; ++t) {
          const int row = top + t;
          if (row >= 0 && row < b.height) {
            value += weights[t] *
                     static_cast<float>(
                         image[row * row_floats + column * b.channels + channel]);
          }
        }
      }
      buffer[i] = value;
    }
    __syncwarp();
    for (int v = lane; v < side * vectors; v += 32) {
      const int patch = v / vectors;
      const int within = (v - patch * vectors) * kVector;
      float values[kVector];
      int x = patch * b.patch + within / b.channels;
      int channel = within % b.channels;
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const float* from = buffer + b.columns.first[x] * b.channels + channel;
        const float* w = b.columns.weights + x * b.columns.taps;
        float value = 0;
        for (int t = 0; t < b.columns.taps; ++t) {
          value += w[t] * from[t * b.channels];
        }
        values[j] = value * b.scale[channel] + b.shift[channel];
        if (++channel == b.channels) {
          channel = 0;
          ++x;
        }
      }
      bf16* to = out + (b.lead + y / b.patch * side + patch) * patch_size +
                 y % b.patch * patch_row + within;
      *reinterpret_cast<Raw*>(to) = cuda::pack<kVector>(values);
    }
  }
}

}  // namespace

namespace cuda {

void prepare_images(const ImageBatch& b, Stream stream) {
  expect(b.type == Type::kBFloat16, "prepare_images: bf16 only on a GPU");
  expect(
      b.channels >= 1 && b.channels <= 3 &&
          b.width * b.channels <= kMostRowFloats,
      "prepare_images: rows of at most 1536 values, of 1 to 3 channels");
  expect(
      b.patch >= 1 && b.size % b.patch == 0,
      "prepare_images: the size is a multiple of the patch");
  if (b.count == 0) {
    return;
  }
  const size_t shared =
      kWarps * static_cast<size_t>(b.width * b.channels) * sizeof(float);
  const auto blocks = static_cast<unsigned>(b.count);
  const int patch_row = b.patch * b.channels;
  const auto kernel = patch_row % 8 == 0   ? prepare<8>
                      : patch_row % 4 == 0 ? prepare<4>
                                           : prepare<1>;
  kernel<<<blocks, kWarps * 32, shared, native(stream)>>>(b);
  check_launch("prepare_images");
}

}  // namespace cuda
}  // namespace lockstep::kernels
