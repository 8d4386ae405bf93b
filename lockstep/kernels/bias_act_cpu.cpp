#include "lockstep/kernels/bias_act.h"
#include "lockstep/kernels/twin.h"

namespace lockstep::kernels::cpu {
namespace {

constexpr int64_t kTaps = 9;

}  // namespace

int bias_act_groups(int64_t /*rows*/, int64_t /*channels*/) {
  return 1;
}

void bias_act_forward(const BiasActForward& b) {
  for (int64_t r = 0; r < b.rows; ++r) {
    for (int64_t c = 0; c < b.channels; ++c) {
      float sum = b.bias != nullptr ? b.bias[c] : 0;
      for (int s = 0; s < b.num_sources; ++s) {
        const auto& part = b.sources[s];
        sum += get(part.data, b.type, r * part.stride + c);
      }
      float value = b.scale * (sum > 0 ? sum : b.slope * sum);
      const int64_t at = r * b.channels + c;
      if (b.residual != nullptr) {
        value += get(b.residual, b.type, at);
      }
      put(b.out, b.type, at, value);
    }
  }
}

void bias_act_backward(const BiasActBackward& b) {
  for (int64_t c = 0; c < b.channels; ++c) {
    float total = 0;
    for (int64_t r = 0; r < b.rows; ++r) {
      const int64_t at = r * b.channels + c;
      const bool below =
          b.output != nullptr && !(get(b.output, b.type, at) > 0);
      const float value =
          b.scale * get(b.gradient, b.type, at) * (below ? b.slope : 1);
      total += value;
      for (int t = 0; t < b.num_targets; ++t) {
        const auto& part = b.targets[t];
        put(const_cast<void*>(part.data), b.type, r * part.stride + c, value);
      }
    }
    if (b.sums != nullptr) {
      b.sums[c] = total;
    }
  }
}

void bias_sums(const BiasSums& b) {
  const int64_t stride = b.maps * b.channels;
  for (int m = 0; m < b.maps; ++m) {
    for (int64_t c = 0; c < b.channels; ++c) {
      float total = 0;
      for (int g = 0; g < b.groups; ++g) {
        total += b.sums[g * stride + m * b.channels + c];
      }
      b.out[m][c] += total;
    }
  }
}

void dense_pack(const DensePack& d) {
  const int64_t rows = d.width * kTaps;  // an output and a tap each
  for (int conv = 0; conv < d.convs; ++conv) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int map = 0; map <= conv; ++map) {
        const int64_t from = (row * (conv + 1) + map) * d.width;
        const int64_t to = ((conv - map) * rows + row) * d.width;
        for (int64_t c = 0; c < d.width; ++c) {
          put(d.packed[map], d.type, to + c, d.plain[conv][from + c]);
        }
      }
    }
  }
}

void dense_unpack(const DenseUnpack& d) {
  const int64_t rows = d.width * kTaps;
  for (int conv = 0; conv < d.convs; ++conv) {
    const int64_t read = (conv + 1) * d.width;  // channels of its maps
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t from = (conv * rows + row) * d.convs * d.width;
      for (int64_t c = 0; c < read; ++c) {
        d.plain[conv][row * read + c] += get(d.whole, d.type, from + c);
      }
    }
  }
}

}  // namespace lockstep::kernels::cpu
