#include "lockstep/kernels/gemm.h"
#include "lockstep/kernels/twin.h"

namespace lockstep::kernels::cpu {

void gemm(const Gemm& g) {
  for (int64_t i = 0; i < g.m; ++i) {
    for (int64_t j = 0; j < g.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < g.k; ++l) {
        const int64_t a = g.transpose_a ? l * g.m + i : i * g.k + l;
        const int64_t b = g.transpose_b ? j * g.k + l : l * g.n + j;
        sum += static_cast<double>(get(g.a, g.type, a)) * get(g.b, g.type, b);
      }
      if (g.bias != nullptr) {
        sum += get(g.bias, g.type, j);
      }
      if (g.beta != 0) {
        sum += g.beta * get(g.d, g.out_type, i * g.n + j);
      }
      put(g.d, g.out_type, i * g.n + j, static_cast<float>(sum));
    }
  }
}

}  // namespace lockstep::kernels::cpu
