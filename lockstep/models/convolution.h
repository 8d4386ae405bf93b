#pragma once

// The four convolutions that DCGAN is made of, each a module with one weight
// named as PyTorch's (and initialised as its), computed the way that is
// fastest on a CPU in channels_last:
//   Halve    4x4, stride 2, padding 1          [out, in, 4, 4]
//   Double   its transpose                      [in, out, 4, 4]
//   Contract a 4x4 map to 1x1: a matrix product [out, in, 4, 4]
//   Expand   a 1x1 map to 4x4: a matrix product [in, out, 4, 4]
// On maps of 4x4 and smaller the weight gradient of Halve and Double is one
// matrix product too: oneDNN takes twice as long there (docs/benchmarks.md).
// On a GPU in bf16 Halve of an image and Double to one are products of its
// windows (windows.h). Elsewhere they are at::conv2d and at::conv_transpose2d.

#include <torch/nn/module.h>

namespace lockstep::models {

class Halve : public torch::nn::Module {
 public:
  Halve(int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
};

class Double : public torch::nn::Module {
 public:
  Double(int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
};

class Contract : public torch::nn::Module {
 public:
  Contract(int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
};

class Expand : public torch::nn::Module {
 public:
  Expand(int64_t in, int64_t out);
  at::Tensor forward(const at::Tensor& x);

 private:
  at::Tensor weight_;
};

}  // namespace lockstep::models
