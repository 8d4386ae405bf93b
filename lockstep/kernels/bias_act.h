#pragma once

// What stands between the convolutions of a dense network, on maps seen as
// [rows, channels] (channels_last: a row a pixel). Forward: parts of several
// maps are summed, with bias, LeakyReLU and a scaled residual, in one pass; a
// convolution need not write into a concatenation. Backward: the gradient of
// that goes to several maps at once, and its column sums to the bias.
//
//   out = scale * act(sum of sources + bias) + residual
//   d   = scale * gradient * act'(output);  each target = d;  bias += sum of d

#include "lockstep/kernels/types.h"

namespace lockstep::kernels {

constexpr int kMostMaps = 5;

// A map of which `channels` neighbours a row are used, `stride` elements apart.
struct MapPart {
  const void* data = nullptr;
  int64_t stride = 0;
};

struct BiasActForward {
  int64_t rows = 0;
  int64_t channels = 0;  // cuda: a multiple of 8, as strides
  Type type = Type::kBFloat16;
  int num_sources = 1;
  MapPart sources[kMostMaps];
  const float* bias = nullptr;     // null: none
  float slope = 1;                 // 1: no activation, 0: ReLU
  float scale = 1;                 // of what is added to the residual
  const void* residual = nullptr;  // [rows, channels]; null: none
  void* out = nullptr;             // [rows, channels]; may be the only source
};

struct BiasActBackward {
  int64_t rows = 0;
  int64_t channels = 0;
  Type type = Type::kBFloat16;
  const void* gradient = nullptr;  // [rows, channels]
  const void* output = nullptr;    // of the activation; null: none
  float slope = 1;
  float scale = 1;
  int num_targets = 1;
  MapPart targets[kMostMaps];  // written
  float* bias = nullptr;       // [channels], added to; null: not wanted
  float* scratch = nullptr;    // cuda: bias_act_scratch(channels) floats
};
size_t bias_act_scratch(int64_t channels);

// The weights of a dense block's convolutions, turned round. Convolution i of
// `convs` takes i + 1 maps of `width` channels; its weight lies as [width, 3 x
// 3, (i + 1) x width]. Packed, map j has all that reads it in one weight,
// [(convs - j) x width, 3 x 3, width], one behind the other. `unpack` adds
// packed gradients to plain ones.
struct DensePack {
  int convs = kMostMaps;
  int64_t width = 0;
  Type type = Type::kBFloat16;   // of `packed`
  float* plain[kMostMaps] = {};  // read; by unpack added to
  void* packed[kMostMaps] = {};  // written; by unpack read
};

namespace cpu {
void bias_act_forward(const BiasActForward& b);
void bias_act_backward(const BiasActBackward& b);
void dense_pack(const DensePack& d);
void dense_unpack(const DensePack& d);
}  // namespace cpu

namespace cuda {
void bias_act_forward(const BiasActForward& b, Stream stream);
void bias_act_backward(const BiasActBackward& b, Stream stream);
void dense_pack(const DensePack& d, Stream stream);
void dense_unpack(const DensePack& d, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
