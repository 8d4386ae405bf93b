#pragma once

// The weights of one axis of an antialiased resize: output i is the sum over k
// of weights[i * taps + k] times input first[i] + k, never past the input's
// end. Made as PyTorch makes them: pixel centres at .5, the filter widened by
// the scale when shrinking, weights normalised to sum to 1.

#include <vector>

#include "lockstep/data/resize.h"

namespace lockstep::data {

struct Axis {
  int input = 0;
  int output = 0;
  int taps = 0;
  std::vector<int> first;
  std::vector<float> weights;
};

Axis make_axis(int input, int output, Resize resize);
// The same axis with its outputs in the opposite order.
Axis mirrored(const Axis& axis);

}  // namespace lockstep::data
