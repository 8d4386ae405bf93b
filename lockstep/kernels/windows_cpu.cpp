#include <vector>

#include "lockstep/kernels/twin.h"
#include "lockstep/kernels/windows.h"

namespace lockstep::kernels {

bool windows_fit(int64_t rows, int64_t channels) {
  return (channels == 1 || channels == 3) &&
         rows * 16 * channels < (int64_t{1} << 31);
}

namespace cpu {
namespace {

constexpr int64_t kSide = 4;

// Calls with (place in the image or -1 outside it, place in the rows) for all
// values of the rows.
template <class Visit>
void visit(const Windows& w, Visit visit) {
  int64_t at = 0;
  for (int64_t row = 0; row < w.rows(); ++row) {
    const int64_t x = row % (w.width / 2);
    const int64_t y = row / (w.width / 2) % (w.height / 2);
    const int64_t image = row / (w.width / 2) / (w.height / 2);
    for (int64_t k = 0; k < kSide * kSide; ++k) {
      const int64_t line = 2 * y - 1 + k / kSide;
      const int64_t column = 2 * x - 1 + k % kSide;
      const bool inside =
          line >= 0 && line < w.height && column >= 0 && column < w.width;
      const int64_t pixel = (image * w.height + line) * w.width + column;
      for (int64_t c = 0; c < w.channels; ++c, ++at) {
        visit(inside ? pixel * w.channels + c : -1, at);
      }
    }
  }
}

}  // namespace

void unfold(const Windows& w) {
  visit(w, [&](int64_t pixel, int64_t at) {
    put(w.to, w.type, at, pixel < 0 ? 0.F : get(w.from, w.type, pixel));
  });
}

void fold(const Windows& w) {
  std::vector<float> sums(
      static_cast<size_t>(w.images * w.height * w.width * w.channels));
  visit(w, [&](int64_t pixel, int64_t at) {
    if (pixel >= 0) {
      sums[static_cast<size_t>(pixel)] += get(w.from, w.type, at);
    }
  });
  for (size_t i = 0; i < sums.size(); ++i) {
    put(w.to, w.type, static_cast<int64_t>(i), sums[i]);
  }
}

}  // namespace cpu
}  // namespace lockstep::kernels
