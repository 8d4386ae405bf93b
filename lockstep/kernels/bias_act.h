#pragma once

// What stands between the convolutions of a dense network, on maps seen as
// [rows, channels] (channels_last: a row a pixel). Forward: parts of several
// maps are summed, with bias, LeakyReLU and a scaled residual, in one pass; a
// convolution need not write into a concatenation. Backward: the gradient of
// that goes to several maps at once, and its column sums, in parts, to where
// bias_sums() adds up those of several calls for their biases.
//
//   out = scale * act(sum of sources + bias) + residual
//   d   = scale * gradient * act'(output);  each target = d;  sums = sum of d

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
  // [bias_act_groups(), sums_stride]: the first `channels` of each row are
  // written. Null: not wanted.
  float* sums = nullptr;
  int64_t sums_stride = 0;
};

// out[m][c] += the sum over the groups of sums[group, m * channels + c].
struct BiasSums {
  int groups = 1;  // what bias_act_groups() said for the calls that left them
  int maps = 1;
  int64_t channels = 0;
  const float* sums = nullptr;
  float* out[kMostMaps] = {};
};

// The weights of a dense block's convolutions, turned round. Convolution i of
// `convs` takes i + 1 maps of `width` channels; its weight lies as [width, 3 x
// 3, (i + 1) x width]. Packed, map j has all that reads it in one weight,
// [(convs - j) x width, 3 x 3, width], one behind the other.
struct DensePack {
  int convs = kMostMaps;
  int64_t width = 0;            // cuda: a multiple of 8
  Type type = Type::kBFloat16;  // of `packed`
  const float* plain[kMostMaps] = {};
  void* packed[kMostMaps] = {};
};

// The gradient of all those weights as one product gives it, over all maps and
// for all outputs, [convs x width, 3 x 3, convs x width], added to the plain
// ones. What a convolution would have of maps that it does not read is left.
struct DenseUnpack {
  int convs = kMostMaps;
  int64_t width = 0;
  Type type = Type::kBFloat16;
  const void* whole = nullptr;
  float* plain[kMostMaps] = {};
};

namespace cpu {
int bias_act_groups(int64_t rows, int64_t channels);
void bias_act_forward(const BiasActForward& b);
void bias_act_backward(const BiasActBackward& b);
void bias_sums(const BiasSums& b);
void dense_pack(const DensePack& d);
void dense_unpack(const DenseUnpack& d);
}  // namespace cpu

namespace cuda {
int bias_act_groups(int64_t rows, int64_t channels);
void bias_act_forward(const BiasActForward& b, Stream stream);
void bias_act_backward(const BiasActBackward& b, Stream stream);
void bias_sums(const BiasSums& b, Stream stream);
void dense_pack(const DensePack& d, Stream stream);
void dense_unpack(const DenseUnpack& d, Stream stream);
}  // namespace cuda

}  // namespace lockstep::kernels
