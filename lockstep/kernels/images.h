#pragma once

// From 8-bit images to what a network takes, in one pass: picks samples, crops
// them out of a border of zeros, mirrors, resizes, normalises and cuts into
// patches. Output row [sample, lead + patch] holds patch x patch pixels of
// interleaved channels; `lead` rows before the patches are zeros (the place of
// a class token). With patch = size and lead 0 it is an image in
// channels_last. What is random is drawn by the caller.

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

// One axis of the resize: output i is the sum of weights[i * taps + t] times
// input first[i] + t.
struct ImageAxis {
  int taps = 0;
  const int* first = nullptr;
  const float* weights = nullptr;
};

struct ImageBatch {
  const uint8_t* pixels = nullptr;   // [any, height, width, channels]
  const int64_t* indices = nullptr;  // [count], which; null: the first ones
  int64_t count = 0;
  int height = 0;
  int width = 0;
  int channels = 0;  // 1 to 3
  int size = 0;      // of the output, a multiple of patch
  int patch = 0;
  int lead = 0;
  ImageAxis rows;     // height -> size
  ImageAxis columns;  // width -> size
  // [count, 3]: mirrored or not, and row and column of the crop in the image
  // with `padding` zeros around it; null: not moved.
  const int32_t* moves = nullptr;
  int padding = 0;
  float scale[3] = {1, 1, 1};  // output = pixel * scale + shift
  float shift[3] = {0, 0, 0};
  Type type = Type::kBFloat16;
  void* out = nullptr;
};

namespace cpu {
void prepare_images(const ImageBatch& b);
}  // namespace cpu

namespace cuda {
void prepare_images(const ImageBatch& b, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
