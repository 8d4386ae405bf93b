#include "lockstep/forest/encode.h"

#include <vector>

#include "lockstep/forest/binning.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::forest {
namespace {

using Encode = void (*)(std::span<const float>, const float*, size_t, uint8_t*);

#if defined(__x86_64__)

constexpr size_t kFew = 16;  // edges compared at once; kFew^2 is kMaxBins

// The last edge of each sixteen: they say which sixteen to look at.
std::vector<float> last_of_sixteen(const float* edges, size_t num_features) {
  std::vector<float> result(num_features * kFew);
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = edges[i * kFew + kFew - 1];
  }
  return result;
}

__attribute__((target("avx512f,popcnt"))) inline size_t count_below(
    const float* sixteen,
    __m512 value) {
  const auto less =
      _mm512_cmp_ps_mask(_mm512_loadu_ps(sixteen), value, _CMP_LT_OQ);
  return static_cast<size_t>(_mm_popcnt_u32(less));
}

__attribute__((target("avx512f,popcnt"))) void encode_avx512(
    std::span<const float> rows,
    const float* edges,
    size_t num_features,
    uint8_t* bins) {
  const auto coarse = last_of_sixteen(edges, num_features);
  for (size_t i = 0; i < rows.size(); i += num_features) {
    for (size_t f = 0; f < num_features; ++f) {
      const __m512 value = _mm512_set1_ps(rows[i + f]);
      const size_t first = kFew * count_below(&coarse[f * kFew], value);
      bins[i + f] = static_cast<uint8_t>(
          first + count_below(edges + f * kMaxBins + first, value));
    }
  }
}

#endif

Encode choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("popcnt")) {
    return encode_avx512;
  }
#endif
  return encode_bins_plain;
}

}  // namespace

void encode_bins_plain(
    std::span<const float> rows,
    const float* edges,
    size_t num_features,
    uint8_t* bins) {
  for (size_t i = 0; i < rows.size(); i += num_features) {
    for (size_t f = 0; f < num_features; ++f) {
      // Eight halvings without a branch.
      const float* own = edges + f * kMaxBins;
      size_t at = 0;
      for (size_t step = kMaxBins / 2; step > 0; step /= 2) {
        at += own[at + step - 1] < rows[i + f] ? step : 0;
      }
      bins[i + f] = static_cast<uint8_t>(at);
    }
  }
}

void encode_bins(
    std::span<const float> rows,
    const float* edges,
    size_t num_features,
    uint8_t* bins) {
  static const Encode encode = choose();
  encode(rows, edges, num_features, bins);
}

}  // namespace lockstep::forest
