#include "lockstep/kernels/bias_act.h"
#include "lockstep/kernels/twin.h"

namespace lockstep::kernels::cpu {
namespace {

constexpr int64_t kTaps = 9;

// Calls with (conv, map, place in the plain weight, place in the packed one).
template <class Visit>
void visit_rows(const DensePack& d, Visit visit) {
  for (int i = 0; i < d.convs; ++i) {
    for (int64_t row = 0; row < d.width * kTaps; ++row) {
      for (int j = 0; j <= i; ++j) {
        visit(
            i,
            j,
            (row * (i + 1) + j) * d.width,
            ((i - j) * d.width * kTaps + row) * d.width);
      }
    }
  }
}

}  // namespace

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
    if (b.bias != nullptr) {
      b.bias[c] += total;
    }
  }
}

void dense_pack(const DensePack& d) {
  visit_rows(d, [&](int conv, int map, int64_t from, int64_t to) {
    for (int64_t c = 0; c < d.width; ++c) {
      put(d.packed[map], d.type, to + c, d.plain[conv][from + c]);
    }
  });
}

void dense_unpack(const DensePack& d) {
  visit_rows(d, [&](int conv, int map, int64_t to, int64_t from) {
    for (int64_t c = 0; c < d.width; ++c) {
      d.plain[conv][to + c] += get(d.packed[map], d.type, from + c);
    }
  });
}

}  // namespace lockstep::kernels::cpu
