#include "lockstep/kernels/device.cuh"
#include "lockstep/kernels/max_pool.h"

// Both ways a thread owns 8 neighbouring channels of one pixel of what it
// writes; neighbours in a warp share their reads through the cache.

namespace lockstep::kernels {
namespace {

constexpr int kVector = 8;
constexpr int kThreads = 256;
constexpr int kMostWindow = 15;  // its square fits a byte

// The pixel of a map of height x width that a thread writes.
struct Pixel {
  int64_t index = 0;  // in vectors of 8 channels
  int vector = 0;
  int x = 0;
  int y = 0;
  int64_t image = 0;
};

__device__ bool find_pixel(
    const MaxPoolShape& m,
    int height,
    int width,
    Pixel& p) {
  const int vectors = static_cast<int>(m.channels) / kVector;
  p.index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (p.index >= m.images * height * width * vectors) {
    return false;
  }
  int64_t rest = p.index / vectors;
  p.vector = static_cast<int>(p.index - rest * vectors);
  p.image = rest / (height * width);
  const int inside = static_cast<int>(rest - p.image * height * width);
  p.y = inside / width;
  p.x = inside - p.y * width;
  return true;
}

__global__ void __launch_bounds__(kThreads)
    forward(MaxPoolForward m, int out_height, int out_width) {
  Pixel p;
  if (!find_pixel(m, out_height, out_width, p)) {
    return;
  }
  const int vectors = static_cast<int>(m.channels) / kVector;
  const auto window = static_cast<int>(m.window);
  const int top = p.y * static_cast<int>(m.stride) - static_cast<int>(m.padding);
  const int left =
      p.x * static_cast<int>(m.stride) - static_cast<int>(m.padding);
  const auto* x = static_cast<const uint4*>(m.x) +
                  p.image * m.height * m.width * vectors + p.vector;
  float most[kVector];
  unsigned winners[kVector];
  bool any = false;
  for (int i = 0; i < window; ++i) {
    const int row = top + i;
    if (row < 0 || row >= m.height) {
      continue;
    }
    for (int j = 0; j < window; ++j) {
      const int column = left + j;
      if (column < 0 || column >= m.width) {
        continue;
      }
      float values[kVector];
      cuda::unpack<kVector>(
          x[(static_cast<int64_t>(row) * m.width + column) * vectors], values);
      const auto inside = static_cast<unsigned>(i * window + j);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const bool wins =
            !any || values[v] > most[v] || values[v] != values[v];
        most[v] = wins ? values[v] : most[v];
        winners[v] = wins ? inside : winners[v];
      }
      any = true;
    }
  }
  static_cast<uint4*>(m.y)[p.index] = cuda::pack<kVector>(most);
  uint2 bytes = {0, 0};
#pragma unroll
  for (int v = 0; v < 4; ++v) {
    bytes.x |= winners[v] << (8 * v);
    bytes.y |= winners[4 + v] << (8 * v);
  }
  reinterpret_cast<uint2*>(m.winners)[p.index] = bytes;
}

__global__ void __launch_bounds__(kThreads)
    backward(MaxPoolBackward m, int out_height, int out_width) {
  Pixel p;
  if (!find_pixel(
          m, static_cast<int>(m.height), static_cast<int>(m.width), p)) {
    return;
  }
  const int vectors = static_cast<int>(m.channels) / kVector;
  const auto window = static_cast<int>(m.window);
  const auto stride = static_cast<int>(m.stride);
  const int y = p.y + static_cast<int>(m.padding);
  const int x = p.x + static_cast<int>(m.padding);
  // The windows that reach this pixel.
  const int first_y = y < window ? 0 : (y - window) / stride + 1;
  const int first_x = x < window ? 0 : (x - window) / stride + 1;
  const int last_y = min(out_height - 1, y / stride);
  const int last_x = min(out_width - 1, x / stride);
  float sums[kVector] = {};
  for (int oy = first_y; oy <= last_y; ++oy) {
    for (int ox = first_x; ox <= last_x; ++ox) {
      const int64_t at =
          ((p.image * out_height + oy) * out_width + ox) * vectors + p.vector;
      const uint2 bytes = reinterpret_cast<const uint2*>(m.winners)[at];
      float slopes[kVector];
      cuda::unpack<kVector>(static_cast<const uint4*>(m.dy)[at], slopes);
      const auto inside = static_cast<unsigned>(
          (y - oy * stride) * window + x - ox * stride);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const unsigned word = v < 4 ? bytes.x : bytes.y;
        const unsigned winner = (word >> (8 * (v % 4))) & 255U;
        sums[v] += winner == inside ? slopes[v] : 0.F;
      }
    }
  }
  static_cast<uint4*>(m.dx)[p.index] = cuda::pack<kVector>(sums);
}

void check(const MaxPoolShape& m) {
  cuda::expect(
      m.type == Type::kBFloat16 && m.channels % kVector == 0 &&
          m.window >= m.stride && m.window <= kMostWindow && m.stride > 0 &&
          m.padding >= 0 && m.padding < m.window,
      "max_pool: bf16, channels a multiple of 8, window at most 15");
}

// A thread a vector of 8 channels.
unsigned blocks_for(int64_t pixels, const MaxPoolShape& m) {
  const int64_t vectors = m.images * pixels * m.channels / kVector;
  return static_cast<unsigned>((vectors + kThreads - 1) / kThreads);
}

}  // namespace

namespace cuda {

void max_pool_forward(const MaxPoolForward& m, Stream stream) {
  check(m);
  const auto height = static_cast<int>(m.pooled(m.height));
  const auto width = static_cast<int>(m.pooled(m.width));
  forward<<<
      blocks_for(int64_t{height} * width, m),
      kThreads,
      0,
      native(stream)>>>(m, height, width);
  check_launch("max_pool_forward");
}

void max_pool_backward(const MaxPoolBackward& m, Stream stream) {
  check(m);
  backward<<<
      blocks_for(m.height * m.width, m),
      kThreads,
      0,
      native(stream)>>>(
      m,
      static_cast<int>(m.pooled(m.height)),
      static_cast<int>(m.pooled(m.width)));
  check_launch("max_pool_backward");
}

}  // namespace cuda
}  // namespace lockstep::kernels
