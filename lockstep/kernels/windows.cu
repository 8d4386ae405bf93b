#include "lockstep/kernels/device.cuh"
#include "lockstep/kernels/windows.h"

namespace lockstep::kernels {
namespace {

using Half = unsigned short;  // the bits of a bf16

constexpr int kThreads = 256;
constexpr int kSide = 4;

// What an index over [images, lines, columns] means.
struct Place {
  int image = 0;
  int y = 0;
  int x = 0;
};

__device__ Place place_of(unsigned index, unsigned lines, unsigned columns) {
  const unsigned up = index / columns;
  return {
      static_cast<int>(up / lines),
      static_cast<int>(up % lines),
      static_cast<int>(index - up * columns)};
}

// A thread a line of a window: four pixels, neighbours in both memories.
template <int kChannels>
__global__ void __launch_bounds__(kThreads) unfold_lines(Windows w) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= w.images * (w.height / 2) * (w.width / 2) * kSide) {
    return;
  }
  const auto height = static_cast<int>(w.height);
  const auto width = static_cast<int>(w.width);
  const Place p = place_of(index / kSide, height / 2, width / 2);
  const int line = 2 * p.y - 1 + static_cast<int>(index % kSide);
  const int column = 2 * p.x - 1;
  const bool inside = line >= 0 && line < height;
  const Half* from =
      static_cast<const Half*>(w.from) +
      (static_cast<int64_t>(p.image * height + line) * width + column) *
          kChannels;
  alignas(8) Half values[kSide * kChannels];
#pragma unroll
  for (int j = 0; j < kSide * kChannels; ++j) {
    const int at = column + j / kChannels;
    values[j] = inside && at >= 0 && at < width ? from[j] : Half{0};
  }
  auto* to = static_cast<uint2*>(w.to) + static_cast<int64_t>(index) * kChannels;
#pragma unroll
  for (int j = 0; j < kChannels; ++j) {
    to[j] = reinterpret_cast<const uint2*>(values)[j];
  }
}

// A thread a pixel: two lines and two columns of windows hold it.
template <int kChannels>
__global__ void __launch_bounds__(kThreads) fold_pixels(Windows w) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= w.images * w.height * w.width) {
    return;
  }
  const auto lines = static_cast<int>(w.height / 2);
  const auto columns = static_cast<int>(w.width / 2);
  const Place p = place_of(index, 2 * lines, 2 * columns);
  float sums[kChannels] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int ky = (p.y + 1) % 2 + 2 * i;
    const int y = (p.y + 1 - ky) / 2;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int kx = (p.x + 1) % 2 + 2 * j;
      const int x = (p.x + 1 - kx) / 2;
      if (p.y + 1 >= ky && y < lines && p.x + 1 >= kx && x < columns) {
        const int64_t row =
            static_cast<int64_t>(p.image * lines + y) * columns + x;
        const Half* from = static_cast<const Half*>(w.from) +
                           (row * kSide * kSide + ky * kSide + kx) * kChannels;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          sums[c] += __uint_as_float(static_cast<unsigned>(from[c]) << 16);
        }
      }
    }
  }
  Half* to =
      static_cast<Half*>(w.to) + static_cast<int64_t>(index) * kChannels;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const float one[1] = {sums[c]};
    to[c] = cuda::pack<1>(one);
  }
}

void check(const Windows& w) {
  cuda::expect(
      w.type == Type::kBFloat16 && windows_fit(w.rows(), w.channels) &&
          w.height % 2 == 0 && w.width % 2 == 0,
      "windows: bf16, 1 or 3 channels, even sizes, under 2^31 values");
}

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

}  // namespace

namespace cuda {

void unfold(const Windows& w, Stream stream) {
  check(w);
  if (w.rows() == 0) {
    return;
  }
  const auto kernel = w.channels == 1 ? unfold_lines<1> : unfold_lines<3>;
  kernel<<<blocks_for(w.rows() * kSide), kThreads, 0, native(stream)>>>(w);
  check_launch("unfold");
}

void fold(const Windows& w, Stream stream) {
  check(w);
  if (w.rows() == 0) {
    return;
  }
  const auto kernel = w.channels == 1 ? fold_pixels<1> : fold_pixels<3>;
  kernel<<<blocks_for(w.rows() * 4), kThreads, 0, native(stream)>>>(w);
  check_launch("fold");
}

}  // namespace cuda
}  // namespace lockstep::kernels
