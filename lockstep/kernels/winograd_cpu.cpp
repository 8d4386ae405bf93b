#include "lockstep/kernels/winograd.h"

#include <array>
#include <cstddef>
#include <vector>

#include "lockstep/kernels/vectors.h"

namespace lockstep::kernels::cpu {
namespace {

constexpr int64_t kSide = 4;  // of what a tile of 2x2 outputs reads
// Weights that are read from behind: first and last change places.
constexpr std::array<int64_t, 4> kReversed = {3, 1, 2, 0};

template <class T>
using Rows = std::array<T*, 4>;  // four rows of n numbers

// The loops' outputs never lie where their inputs do.
template <class T>
[[gnu::always_inline]] inline void
spread_loop(const Rows<const T>& in, const Rows<T>& out, int64_t n) {
  const auto [a, b, c, d] = in;
  const auto [w, x, y, z] = out;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    w[i] = a[i] - c[i];
    x[i] = b[i] + c[i];
    y[i] = c[i] - b[i];
    z[i] = b[i] - d[i];
  }
}

template <class T>
[[gnu::always_inline]] inline void
gather_loop(const Rows<const T>& in, T* x, T* y, int64_t n) {
  const auto [a, b, c, d] = in;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T first = a[i] + b[i] + c[i];
    const T second = b[i] - c[i] - d[i];
    x[i] = first;
    y[i] = second;
  }
}

template <class T>
[[gnu::always_inline]] inline void
widen_loop(const T* a, const T* b, const Rows<T>& out, int64_t n) {
  const auto [w, x, y, z] = out;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    w[i] = a[i];
    x[i] = a[i] + b[i];
    y[i] = a[i] - b[i];
    z[i] = -b[i];
  }
}

template <class T>
[[gnu::always_inline]] inline void
activate_loop(T* row, const T* bias, T slope, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const T value = row[i] + bias[i];
    row[i] = value > 0 ? value : value * slope;
  }
}

// Only functions with a plain name may have clones.
LOCKSTEP_VECTORS void
spread(const Rows<const float>& in, const Rows<float>& out, int64_t n) {
  spread_loop<float>(in, out, n);
}
LOCKSTEP_VECTORS void
spread(const Rows<const double>& in, const Rows<double>& out, int64_t n) {
  spread_loop<double>(in, out, n);
}
LOCKSTEP_VECTORS void
gather(const Rows<const float>& in, float* x, float* y, int64_t n) {
  gather_loop<float>(in, x, y, n);
}
LOCKSTEP_VECTORS void
gather(const Rows<const double>& in, double* x, double* y, int64_t n) {
  gather_loop<double>(in, x, y, n);
}
LOCKSTEP_VECTORS void
widen(const float* a, const float* b, const Rows<float>& out, int64_t n) {
  widen_loop<float>(a, b, out, n);
}
LOCKSTEP_VECTORS void
widen(const double* a, const double* b, const Rows<double>& out, int64_t n) {
  widen_loop<double>(a, b, out, n);
}
LOCKSTEP_VECTORS void
activate(float* row, const float* bias, float slope, int64_t n) {
  activate_loop<float>(row, bias, slope, n);
}
LOCKSTEP_VECTORS void
activate(double* row, const double* bias, double slope, int64_t n) {
  activate_loop<double>(row, bias, slope, n);
}

struct Tile {
  int64_t image;
  int64_t row;
  int64_t column;
};

Tile tile_at(const WinogradMap& m, int64_t index) {
  const int64_t of_image = index % (m.tile_rows() * m.tile_columns());
  return {
      index / (m.tile_rows() * m.tile_columns()),
      of_image / m.tile_columns(),
      of_image % m.tile_columns()};
}

int64_t product_at(const WinogradMap& m, int64_t i, int64_t j) {
  const auto at = [&](int64_t k) {
    return m.reversed ? kReversed[static_cast<size_t>(k)] : k;
  };
  return at(i) * kSide + at(j);
}

template <class T>
void input(const WinogradMap& m, const T* map, T* left) {
  const int64_t n = m.channels;
  const int64_t num_tiles = m.last - m.first;
  const std::vector<T> zeros(static_cast<size_t>(n));
  std::vector<T> rows(static_cast<size_t>(kSide * kSide * n));
  const auto row = [&](int64_t i, int64_t j) {
    return rows.data() + (i * kSide + j) * n;
  };
  for (int64_t t = 0; t < num_tiles; ++t) {
    const Tile tile = tile_at(m, m.first + t);
    const auto pixel = [&](int64_t i, int64_t j) {
      const int64_t y = 2 * tile.row - 1 + i;
      const int64_t x = 2 * tile.column - 1 + j;
      const bool inside = y >= 0 && y < m.height && x >= 0 && x < m.width;
      return inside ? map + ((tile.image * m.height + y) * m.width + x) * n
                    : zeros.data();
    };
    const auto out = [&](int64_t i, int64_t j) {
      return left + (product_at(m, i, j) * num_tiles + t) * n;
    };
    for (int64_t j = 0; j < kSide; ++j) {
      spread(
          Rows<const T>{pixel(0, j), pixel(1, j), pixel(2, j), pixel(3, j)},
          Rows<T>{row(0, j), row(1, j), row(2, j), row(3, j)},
          n);
    }
    for (int64_t i = 0; i < kSide; ++i) {
      spread(
          Rows<const T>{row(i, 0), row(i, 1), row(i, 2), row(i, 3)},
          Rows<T>{out(i, 0), out(i, 1), out(i, 2), out(i, 3)},
          n);
    }
  }
}

template <class T>
void output(
    const WinogradMap& m,
    const T* products,
    const T* bias,
    double slope,
    T* map) {
  const int64_t n = m.channels;
  const int64_t num_tiles = m.last - m.first;
  const std::vector<T> zeros(static_cast<size_t>(n));
  const bool plain = bias == nullptr && slope == 1;
  std::vector<T> rows(static_cast<size_t>((2 * kSide + 1) * n));
  const auto row = [&](int64_t i, int64_t j) {
    return rows.data() + (i * kSide + j) * n;
  };
  for (int64_t t = 0; t < num_tiles; ++t) {
    const Tile tile = tile_at(m, m.first + t);
    const auto in = [&](int64_t i, int64_t j) {
      return products + (product_at(m, i, j) * num_tiles + t) * n;
    };
    for (int64_t j = 0; j < kSide; ++j) {
      gather(
          Rows<const T>{in(0, j), in(1, j), in(2, j), in(3, j)},
          row(0, j),
          row(1, j),
          n);
    }
    for (int64_t i = 0; i < 2; ++i) {
      const int64_t y = 2 * tile.row + i;
      if (y >= m.height) {
        continue;
      }
      T* at =
          map + ((tile.image * m.height + y) * m.width + 2 * tile.column) * n;
      // Beyond an odd width there is nothing to write to.
      const bool both = 2 * tile.column + 1 < m.width;
      T* after = both ? at + n : row(2, 0);
      gather(
          Rows<const T>{row(i, 0), row(i, 1), row(i, 2), row(i, 3)},
          at,
          after,
          n);
      if (!plain) {
        const T* add = bias != nullptr ? bias : zeros.data();
        activate(at, add, static_cast<T>(slope), n);
        activate(after, add, static_cast<T>(slope), n);
      }
    }
  }
}

template <class T>
void gradient(const WinogradMap& m, const T* map, T* products) {
  const int64_t n = m.channels;
  const int64_t num_tiles = m.last - m.first;
  const std::vector<T> zeros(static_cast<size_t>(n));
  std::vector<T> rows(static_cast<size_t>(2 * kSide * n));
  const auto row = [&](int64_t i, int64_t j) {
    return rows.data() + (i * 2 + j) * n;
  };
  for (int64_t t = 0; t < num_tiles; ++t) {
    const Tile tile = tile_at(m, m.first + t);
    const auto pixel = [&](int64_t i, int64_t j) {
      const int64_t y = 2 * tile.row + i;
      const int64_t x = 2 * tile.column + j;
      return y < m.height && x < m.width
                 ? map + ((tile.image * m.height + y) * m.width + x) * n
                 : zeros.data();
    };
    const auto out = [&](int64_t i, int64_t j) {
      return products + (product_at(m, i, j) * num_tiles + t) * n;
    };
    for (int64_t j = 0; j < 2; ++j) {
      widen(
          pixel(0, j),
          pixel(1, j),
          Rows<T>{row(0, j), row(1, j), row(2, j), row(3, j)},
          n);
    }
    for (int64_t i = 0; i < kSide; ++i) {
      widen(
          row(i, 0),
          row(i, 1),
          Rows<T>{out(i, 0), out(i, 1), out(i, 2), out(i, 3)},
          n);
    }
  }
}

}  // namespace

void winograd_gradient(
    const WinogradMap& m,
    const float* map,
    float* products) {
  gradient(m, map, products);
}

void winograd_gradient(
    const WinogradMap& m,
    const double* map,
    double* products) {
  gradient(m, map, products);
}

void winograd_input(const WinogradMap& m, const float* map, float* left) {
  input(m, map, left);
}

void winograd_input(const WinogradMap& m, const double* map, double* left) {
  input(m, map, left);
}

void winograd_output(
    const WinogradMap& m,
    const float* products,
    const float* bias,
    double slope,
    float* map) {
  output(m, products, bias, slope, map);
}

void winograd_output(
    const WinogradMap& m,
    const double* products,
    const double* bias,
    double slope,
    double* map) {
  output(m, products, bias, slope, map);
}

}  // namespace lockstep::kernels::cpu
