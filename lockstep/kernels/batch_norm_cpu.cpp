#include "lockstep/kernels/batch_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/kernels/vectors.h"

// Unlike the other twins this one is trained with: loops over rows of floats
// that the compiler turns into vectors of what the processor has. A bf16 batch
// is widened slice by slice.

namespace lockstep::kernels::cpu {
namespace {

// Rows whose sums are made in fp32 before they go to fp64.
constexpr int64_t kBlock = 64;

// Rows of `width` floats, `stride` apart.
struct Rows {
  float* data = nullptr;
  int64_t stride = 0;
  float* row(int64_t r) const { return data + r * stride; }
};

LOCKSTEP_VECTORS void add_moments(
    const float* x,
    int64_t stride,
    int64_t rows,
    int64_t width,
    const float* shift,
    float* sums,
    float* squares) {
  for (int64_t r = 0; r < rows; ++r, x += stride) {
    for (int64_t c = 0; c < width; ++c) {
      const float apart = x[c] - shift[c];
      sums[c] += apart;
      squares[c] += apart * apart;
    }
  }
}

LOCKSTEP_VECTORS void scale_rows(
    const float* x,
    const float* past,
    float* y,
    int64_t stride,
    int64_t rows,
    int64_t width,
    const float* scale,
    const float* shift,
    float slope) {
  for (int64_t r = 0; r < rows; ++r, x += stride, y += stride) {
    if (past != nullptr) {
      for (int64_t c = 0; c < width; ++c) {
        const float value = x[c] * scale[c] + shift[c] + past[c];
        y[c] = value > 0 ? value : slope * value;
      }
      past += stride;
    } else {
      for (int64_t c = 0; c < width; ++c) {
        const float value = x[c] * scale[c] + shift[c];
        y[c] = value > 0 ? value : slope * value;
      }
    }
  }
}

// dy where y is above 0, a part of it elsewhere, into `masked`.
LOCKSTEP_VECTORS void mask_rows(
    const float* dy,
    const float* y,
    float* masked,
    int64_t stride,
    int64_t rows,
    int64_t width,
    float slope) {
  for (int64_t r = 0; r < rows;
       ++r, dy += stride, y += stride, masked += stride) {
    for (int64_t c = 0; c < width; ++c) {
      masked[c] = y[c] > 0 ? dy[c] : slope * dy[c];
    }
  }
}

LOCKSTEP_VECTORS void add_slopes(
    const float* dy,
    const float* x,
    int64_t stride,
    int64_t rows,
    int64_t width,
    const float* mean,
    float* sums,
    float* products) {
  for (int64_t r = 0; r < rows; ++r, dy += stride, x += stride) {
    for (int64_t c = 0; c < width; ++c) {
      sums[c] += dy[c];
      products[c] += dy[c] * (x[c] - mean[c]);
    }
  }
}

LOCKSTEP_VECTORS void slope_rows(
    const float* dy,
    const float* x,
    float* dx,
    int64_t stride,
    int64_t rows,
    int64_t width,
    const float* by_dy,
    const float* by_x,
    const float* plus) {
  for (int64_t r = 0; r < rows; ++r, dy += stride, x += stride, dx += stride) {
    for (int64_t c = 0; c < width; ++c) {
      dx[c] = by_dy[c] * dy[c] + by_x[c] * x[c] + plus[c];
    }
  }
}

// Calls add(row, rows, first, second) for blocks of rows, with fp32 sums that
// go to `first` and `second` in fp64.
template <class Add>
void sum_blocks(
    int64_t rows,
    size_t width,
    std::vector<double>& first,
    std::vector<double>& second,
    const Add& add) {
  first.assign(width, 0);
  second.assign(width, 0);
  std::vector<float> a(width);
  std::vector<float> b(width);
  for (int64_t r = 0; r < rows; r += kBlock) {
    std::ranges::fill(a, 0.F);
    std::ranges::fill(b, 0.F);
    add(r, std::min(kBlock, rows - r), a.data(), b.data());
    for (size_t c = 0; c < width; ++c) {
      first[c] += a[c];
      second[c] += b[c];
    }
  }
}

// A domain's slice of channels as floats: the memory itself, or a copy that
// store() rounds back.
class Slice {
 public:
  Slice(const BatchNormShape& n, const void* memory, int64_t domain, bool read)
      : n_(n), begin_(domain * n.rows * n.channels + n.begin) {
    if (memory == nullptr) {
      return;
    }
    if (n.type == Type::kFloat32) {
      rows_ = {
          const_cast<float*>(static_cast<const float*>(memory)) + begin_,
          n.channels};
      return;
    }
    const int64_t width = n.end - n.begin;
    copy_.resize(static_cast<size_t>(n.rows * width));
    rows_ = {copy_.data(), width};
    memory_ = static_cast<uint16_t*>(const_cast<void*>(memory));
    for (int64_t r = 0; read && r < n.rows; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        rows_.row(r)[c] = from_bf16(memory_[begin_ + r * n.channels + c]);
      }
    }
  }
  void store() const {
    for (int64_t r = 0; memory_ != nullptr && r < n_.rows; ++r) {
      for (int64_t c = 0; c < rows_.stride; ++c) {
        memory_[begin_ + r * n_.channels + c] = to_bf16(rows_.row(r)[c]);
      }
    }
  }
  float* data() const { return rows_.data; }
  float* row(int64_t r) const { return rows_.row(r); }
  int64_t stride() const { return rows_.stride; }

 private:
  const BatchNormShape& n_;
  int64_t begin_;
  Rows rows_;
  std::vector<float> copy_;
  uint16_t* memory_ = nullptr;
};

}  // namespace

void batch_norm_forward(const BatchNormForward& n) {
  const int64_t width = n.end - n.begin;
  const auto size = static_cast<size_t>(width);
  const auto count = static_cast<double>(n.rows);
  std::vector<double> sums;
  std::vector<double> squares;
  std::vector<float> origin(size);
  std::vector<float> scale(size);
  std::vector<float> shift(size);
  for (int64_t d = 0; d < n.domains; ++d) {
    const Slice x(n, n.x, d, true);
    const Slice past(n, n.past, d, true);
    const Slice y(n, n.y, d, false);
    // From the first row, so that a large mean costs no digits.
    std::copy_n(x.data(), width, origin.data());
    sum_blocks(
        n.rows,
        size,
        sums,
        squares,
        [&](int64_t r, int64_t rows, float* a, float* b) {
          add_moments(x.row(r), x.stride(), rows, width, origin.data(), a, b);
        });
    for (int64_t c = 0; c < width; ++c) {
      const auto i = static_cast<size_t>(c);
      const int64_t channel = n.begin + c;
      const double from = sums[i] / count;
      const double mean = from + origin[i];
      const double var = std::max(0., squares[i] / count - from * from);
      const double rstd = 1 / std::sqrt(var + n.eps);
      n.mean[d * n.channels + channel] = static_cast<float>(mean);
      n.rstd[d * n.channels + channel] = static_cast<float>(rstd);
      const auto move = [&](float& running, double now) {
        running = static_cast<float>(
            (1 - static_cast<double>(n.momentum)) * running + n.momentum * now);
      };
      move(n.running_mean[channel], mean);
      move(n.running_var[channel], var * count / std::max(1., count - 1));
      scale[i] = static_cast<float>(rstd * n.weight[channel]);
      shift[i] =
          static_cast<float>(n.bias[channel] - mean * rstd * n.weight[channel]);
    }
    scale_rows(
        x.data(),
        past.data(),
        y.data(),
        x.stride(),
        n.rows,
        width,
        scale.data(),
        shift.data(),
        n.slope);
    y.store();
  }
}

void batch_norm_backward(const BatchNormBackward& n) {
  const int64_t width = n.end - n.begin;
  const auto size = static_cast<size_t>(width);
  const auto count = static_cast<double>(n.rows);
  std::vector<double> sums;
  std::vector<double> products;
  std::vector<float> by_dy(size);
  std::vector<float> by_x(size);
  std::vector<float> plus(size);
  for (int64_t d = 0; d < n.domains; ++d) {
    const Slice dy(n, n.dy, d, true);
    const Slice x(n, n.x, d, true);
    const Slice y(n, n.slope != 1 ? n.y : nullptr, d, true);
    const Slice dpast(n, n.dpast, d, false);
    const Slice dx(n, n.dx, d, false);
    const float* mean = n.mean + d * n.channels + n.begin;
    // dx holds the masked slopes until it is known what else they need.
    float* slopes = dpast.data() != nullptr ? dpast.data() : dx.data();
    if (n.slope != 1) {
      mask_rows(
          dy.data(), y.data(), slopes, x.stride(), n.rows, width, n.slope);
    } else {
      for (int64_t r = 0; r < n.rows; ++r) {
        std::copy_n(dy.row(r), width, slopes + r * x.stride());
      }
    }
    sum_blocks(
        n.rows,
        size,
        sums,
        products,
        [&](int64_t r, int64_t rows, float* a, float* b) {
          add_slopes(
              slopes + r * x.stride(),
              x.row(r),
              x.stride(),
              rows,
              width,
              mean,
              a,
              b);
        });
    for (int64_t c = 0; c < width; ++c) {
      const auto i = static_cast<size_t>(c);
      const int64_t channel = n.begin + c;
      const double rstd = n.rstd[d * n.channels + channel];
      const double scale = rstd * n.weight[channel];
      const double tilt = products[i] * rstd * rstd / count;
      n.dweight[channel] += static_cast<float>(products[i] * rstd);
      n.dbias[channel] += static_cast<float>(sums[i]);
      by_dy[i] = static_cast<float>(scale);
      by_x[i] = static_cast<float>(-scale * tilt);
      plus[i] = static_cast<float>(
          scale * (static_cast<double>(mean[c]) * tilt - sums[i] / count));
    }
    slope_rows(
        slopes,
        x.data(),
        dx.data(),
        x.stride(),
        n.rows,
        width,
        by_dy.data(),
        by_x.data(),
        plus.data());
    dpast.store();
    dx.store();
  }
}

}  // namespace lockstep::kernels::cpu
