#include <cmath>
#include <vector>

#include "lockstep/kernels/layer_norm.h"
#include "lockstep/kernels/twin.h"

namespace lockstep::kernels::cpu {

void norm_forward(const NormForward& n) {
  std::vector<float> row(static_cast<size_t>(n.dim));
  for (int64_t r = 0; r < n.rows; ++r) {
    const int64_t from = n.delta_rows > 0 ? r % n.delta_rows : r;
    double total = 0;
    for (int64_t c = 0; c < n.dim; ++c) {
      float value = get(n.x, n.type, r * n.dim + c);
      if (n.delta != nullptr) {
        value = rounded(n.type, value + get(n.delta, n.type, from * n.dim + c));
      }
      row[static_cast<size_t>(c)] = value;
      total += value;
      if (n.sum != nullptr) {
        put(n.sum, n.type, r * n.dim + c, value);
      }
    }
    const double mean = total / static_cast<double>(n.dim);
    double squares = 0;
    for (const float value : row) {
      squares += (value - mean) * (value - mean);
    }
    const double rstd =
        1 / std::sqrt(squares / static_cast<double>(n.dim) + n.eps);
    n.mean[r] = static_cast<float>(mean);
    n.rstd[r] = static_cast<float>(rstd);
    if (n.y == nullptr) {
      continue;
    }
    for (int64_t c = 0; c < n.dim; ++c) {
      const double xhat = (row[static_cast<size_t>(c)] - mean) * rstd;
      put(n.y,
          n.type,
          r * n.dim + c,
          static_cast<float>(xhat * n.weight[c] + n.bias[c]));
    }
  }
}

void norm_backward(const NormBackward& n) {
  const auto dim = static_cast<size_t>(n.dim);
  std::vector<float> slopes(dim);
  std::vector<float> xhats(dim);
  std::vector<double> dweight(dim);
  std::vector<double> dbias(dim);
  std::vector<double> dcolumns(dim);
  for (int64_t r = 0; r < n.rows; ++r) {
    double mean_slope = 0;
    double mean_both = 0;
    for (size_t c = 0; c < dim; ++c) {
      const int64_t at = r * n.dim + static_cast<int64_t>(c);
      const float dy = get(n.dy, n.type, at);
      xhats[c] = (get(n.sum, n.type, at) - n.mean[r]) * n.rstd[r];
      slopes[c] = dy * n.weight[c];
      mean_slope += slopes[c];
      mean_both += static_cast<double>(slopes[c]) * xhats[c];
      dweight[c] += static_cast<double>(dy) * xhats[c];
      dbias[c] += dy;
    }
    mean_slope /= static_cast<double>(n.dim);
    mean_both /= static_cast<double>(n.dim);
    for (size_t c = 0; c < dim; ++c) {
      const int64_t at = r * n.dim + static_cast<int64_t>(c);
      const float past =
          n.residual != nullptr ? get(n.residual, n.type, at) : 0;
      const double value =
          past + (slopes[c] - mean_slope - xhats[c] * mean_both) * n.rstd[r];
      put(n.dx, n.type, at, static_cast<float>(value));
      dcolumns[c] += get(n.dx, n.type, at);
    }
  }
  for (size_t c = 0; c < dim; ++c) {
    n.dweight[c] += static_cast<float>(dweight[c]);
    n.dbias[c] += static_cast<float>(dbias[c]);
    if (n.dcolumns != nullptr) {
      n.dcolumns[c] += static_cast<float>(dcolumns[c]);
    }
  }
}

}  // namespace lockstep::kernels::cpu
