#include <stdexcept>

#include "lockstep/kernels/images.h"
#include "lockstep/kernels/twin.h"

namespace lockstep::kernels::cpu {
namespace {

// How one sample is moved.
struct Move {
  bool mirror = false;
  int down = 0;
  int across = 0;
};

Move move_of(const ImageBatch& b, int64_t sample) {
  if (b.moves == nullptr) {
    return {};
  }
  const int32_t* at = b.moves + 3 * sample;
  return {at[0] != 0, at[1] - b.padding, at[2] - b.padding};
}

float pixel(
    const ImageBatch& b,
    const uint8_t* image,
    const Move& move,
    int row,
    int column,
    int channel) {
  row += move.down;
  column = (move.mirror ? b.width - 1 - column : column) + move.across;
  if (row < 0 || row >= b.height || column < 0 || column >= b.width) {
    return 0;
  }
  return image[(row * b.width + column) * b.channels + channel];
}

}  // namespace

void prepare_images(const ImageBatch& b) {
  if (b.patch < 1 || b.size % b.patch != 0) {
    throw std::invalid_argument(
        "prepare_images: the size is a multiple of the patch");
  }
  const int side = b.size / b.patch;
  const int64_t patch_size =
      static_cast<int64_t>(b.patch) * b.patch * b.channels;
  const int64_t image_size =
      static_cast<int64_t>(b.height) * b.width * b.channels;
  for (int64_t n = 0; n < b.count; ++n) {
    const int64_t begin = n * (b.lead + side * side) * patch_size;
    for (int64_t i = 0; i < b.lead * patch_size; ++i) {
      put(b.out, b.type, begin + i, 0);
    }
    const int64_t index = b.indices != nullptr ? b.indices[n] : n;
    const uint8_t* image = b.pixels + index * image_size;
    const Move move = move_of(b, n);
    for (int y = 0; y < b.size; ++y) {
      for (int x = 0; x < b.size; ++x) {
        const int64_t patch = b.lead + y / b.patch * side + x / b.patch;
        const int64_t at = begin + patch * patch_size +
                           (y % b.patch * b.patch + x % b.patch) * b.channels;
        for (int c = 0; c < b.channels; ++c) {
          float value = 0;
          for (int s = 0; s < b.columns.taps; ++s) {
            float blended = 0;
            for (int t = 0; t < b.rows.taps; ++t) {
              blended += b.rows.weights[y * b.rows.taps + t] *
                         pixel(
                             b,
                             image,
                             move,
                             b.rows.first[y] + t,
                             b.columns.first[x] + s,
                             c);
            }
            value += b.columns.weights[x * b.columns.taps + s] * blended;
          }
          put(b.out, b.type, at + c, value * b.scale[c] + b.shift[c]);
        }
      }
    }
  }
}

}  // namespace lockstep::kernels::cpu
