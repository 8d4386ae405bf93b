#include <cmath>
#include <vector>

#include "lockstep/kernels/max_pool.h"
#include "lockstep/kernels/twin.h"

namespace lockstep::kernels::cpu {
namespace {

// Calls with (image, row, column) of each window and its place among all.
template <class Visit>
void visit_windows(const MaxPoolShape& m, Visit visit) {
  int64_t at = 0;
  for (int64_t n = 0; n < m.images; ++n) {
    for (int64_t oy = 0; oy < m.pooled(m.height); ++oy) {
      for (int64_t ox = 0; ox < m.pooled(m.width); ++ox, ++at) {
        visit(n, oy, ox, at);
      }
    }
  }
}

// Of a pixel of a window in the input; less than 0: outside.
int64_t place_in(
    const MaxPoolShape& m,
    int64_t n,
    int64_t oy,
    int64_t ox,
    int64_t inside) {
  const int64_t y = oy * m.stride - m.padding + inside / m.window;
  const int64_t x = ox * m.stride - m.padding + inside % m.window;
  const bool there = y >= 0 && y < m.height && x >= 0 && x < m.width;
  return there ? ((n * m.height + y) * m.width + x) * m.channels : -1;
}

}  // namespace

void max_pool_forward(const MaxPoolForward& m) {
  visit_windows(m, [&](int64_t n, int64_t oy, int64_t ox, int64_t at) {
    for (int64_t c = 0; c < m.channels; ++c) {
      float most = -INFINITY;
      int64_t winner = -1;
      for (int64_t inside = 0; inside < m.window * m.window; ++inside) {
        const int64_t from = place_in(m, n, oy, ox, inside);
        if (from < 0) {
          continue;
        }
        const float value = get(m.x, m.type, from + c);
        if (winner < 0 || value > most || std::isnan(value)) {
          most = value;
          winner = inside;
        }
      }
      put(m.y, m.type, at * m.channels + c, most);
      m.winners[at * m.channels + c] = static_cast<uint8_t>(winner);
    }
  });
}

void max_pool_backward(const MaxPoolBackward& m) {
  const int64_t size = m.images * m.height * m.width * m.channels;
  std::vector<float> sums(static_cast<size_t>(size));
  visit_windows(m, [&](int64_t n, int64_t oy, int64_t ox, int64_t at) {
    for (int64_t c = 0; c < m.channels; ++c) {
      const int64_t from = at * m.channels + c;
      const int64_t to = place_in(m, n, oy, ox, m.winners[from]) + c;
      sums[static_cast<size_t>(to)] += get(m.dy, m.type, from);
    }
  });
  for (int64_t i = 0; i < size; ++i) {
    put(m.dx, m.type, i, sums[static_cast<size_t>(i)]);
  }
}

}  // namespace lockstep::kernels::cpu
