#include <cmath>
#include <numbers>
#include <vector>

#include "lockstep/kernels/gelu.h"
#include "lockstep/kernels/twin.h"

namespace lockstep::kernels::cpu {
namespace {

double cumulative(double x) {
  return .5 * std::erfc(-x / std::numbers::sqrt2);
}

double slope(double x) {
  const double density =
      std::exp(-x * x / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
  return cumulative(x) + x * density;
}

void add_columns(
    const void* x,
    Type type,
    int64_t rows,
    int64_t dim,
    float* out) {
  std::vector<double> sums(static_cast<size_t>(dim));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < dim; ++c) {
      sums[static_cast<size_t>(c)] += get(x, type, r * dim + c);
    }
  }
  for (int64_t c = 0; c < dim; ++c) {
    out[c] += static_cast<float>(sums[static_cast<size_t>(c)]);
  }
}

}  // namespace

void gelu_forward(const GeluForward& g) {
  for (int64_t i = 0; i < g.count; ++i) {
    const double x = get(g.x, g.type, i);
    put(g.y, g.type, i, static_cast<float>(x * cumulative(x)));
  }
}

void gelu_backward(const GeluBackward& g) {
  for (int64_t i = 0; i < g.rows * g.dim; ++i) {
    const double dy = get(g.dy, g.type, i);
    put(g.dx, g.type, i, static_cast<float>(dy * slope(get(g.x, g.type, i))));
  }
  if (g.dbias != nullptr) {
    add_columns(g.dx, g.type, g.rows, g.dim, g.dbias);
  }
}

void column_sum(const ColumnSum& c) {
  add_columns(c.x, c.type, c.rows, c.dim, c.out);
}

}  // namespace lockstep::kernels::cpu
