#include <cmath>
#include <vector>

#include "lockstep/kernels/attention.h"
#include "lockstep/kernels/twin.h"

namespace lockstep::kernels::cpu {
namespace {

// One head of one sample out of the packed tensor, as doubles.
class Head {
 public:
  Head(
      const void* from,
      Type type,
      int64_t length,
      int64_t width,
      int64_t first,
      int64_t stride)
      : width_(width), values_(static_cast<size_t>(length * width)) {
    for (int64_t t = 0; t < length; ++t) {
      for (int64_t d = 0; d < width; ++d) {
        values_[static_cast<size_t>(t * width + d)] =
            get(from, type, first + t * stride + d);
      }
    }
  }
  double operator()(int64_t t, int64_t d) const {
    return values_[static_cast<size_t>(t * width_ + d)];
  }

 private:
  int64_t width_;
  std::vector<double> values_;
};

std::vector<double>
probabilities(const Head& q, const Head& k, int64_t length, int64_t width) {
  std::vector<double> p(static_cast<size_t>(length * length));
  const double scale = 1 / std::sqrt(static_cast<double>(width));
  for (int64_t i = 0; i < length; ++i) {
    double* row = p.data() + i * length;
    double most = -INFINITY;
    for (int64_t j = 0; j < length; ++j) {
      row[j] = 0;
      for (int64_t d = 0; d < width; ++d) {
        row[j] += q(i, d) * k(j, d);
      }
      row[j] *= scale;
      most = std::max(most, row[j]);
    }
    double sum = 0;
    for (int64_t j = 0; j < length; ++j) {
      row[j] = std::exp(row[j] - most);
      sum += row[j];
    }
    for (int64_t j = 0; j < length; ++j) {
      row[j] /= sum;
    }
  }
  return p;
}

}  // namespace

void attention_forward(const AttentionForward& a) {
  const int64_t dim = a.heads * a.width;
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t at = b * a.length * 3 * dim + h * a.width;
      const auto part = [&](int64_t which) {
        return Head(
            a.qkv, a.type, a.length, a.width, at + which * dim, 3 * dim);
      };
      const Head v = part(2);
      const auto p = probabilities(part(0), part(1), a.length, a.width);
      for (int64_t i = 0; i < a.length; ++i) {
        for (int64_t d = 0; d < a.width; ++d) {
          double sum = 0;
          for (int64_t j = 0; j < a.length; ++j) {
            sum += p[static_cast<size_t>(i * a.length + j)] * v(j, d);
          }
          put(a.out,
              a.type,
              (b * a.length + i) * dim + h * a.width + d,
              static_cast<float>(sum));
        }
      }
    }
  }
}

void attention_backward(const AttentionBackward& a) {
  const int64_t dim = a.heads * a.width;
  const double scale = 1 / std::sqrt(static_cast<double>(a.width));
  std::vector<double> dbias(static_cast<size_t>(3 * dim));
  for (int64_t b = 0; b < a.batch; ++b) {
    for (int64_t h = 0; h < a.heads; ++h) {
      const int64_t at = b * a.length * 3 * dim + h * a.width;
      const auto part = [&](int64_t which) {
        return Head(
            a.qkv, a.type, a.length, a.width, at + which * dim, 3 * dim);
      };
      const Head q = part(0);
      const Head k = part(1);
      const Head v = part(2);
      const Head o(
          a.dout,
          a.type,
          a.length,
          a.width,
          b * a.length * dim + h * a.width,
          dim);
      const auto p = probabilities(q, k, a.length, a.width);
      std::vector<double> ds(p.size());
      for (int64_t i = 0; i < a.length; ++i) {
        const size_t row = static_cast<size_t>(i * a.length);
        double dot = 0;
        for (int64_t j = 0; j < a.length; ++j) {
          const size_t ij = row + static_cast<size_t>(j);
          for (int64_t d = 0; d < a.width; ++d) {
            ds[ij] += o(i, d) * v(j, d);
          }
          dot += p[ij] * ds[ij];
        }
        for (int64_t j = 0; j < a.length; ++j) {
          const size_t ij = row + static_cast<size_t>(j);
          ds[ij] = p[ij] * (ds[ij] - dot) * scale;
        }
      }
      for (int64_t t = 0; t < a.length; ++t) {
        for (int64_t d = 0; d < a.width; ++d) {
          double sums[3] = {};
          for (int64_t s = 0; s < a.length; ++s) {
            const auto ts = static_cast<size_t>(t * a.length + s);
            const auto st = static_cast<size_t>(s * a.length + t);
            sums[0] += ds[ts] * k(s, d);
            sums[1] += ds[st] * q(s, d);
            sums[2] += p[st] * o(s, d);
          }
          for (int64_t which = 0; which < 3; ++which) {
            const int64_t to = at + t * 3 * dim + which * dim + d;
            put(a.dqkv, a.type, to, static_cast<float>(sums[which]));
            dbias[static_cast<size_t>(which * dim + h * a.width + d)] +=
                get(a.dqkv, a.type, to);
          }
        }
      }
    }
  }
  if (a.dbias != nullptr) {
    for (int64_t i = 0; i < 3 * dim; ++i) {
      a.dbias[i] += static_cast<float>(dbias[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace lockstep::kernels::cpu
