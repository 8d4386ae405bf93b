#include "lockstep/forest/top_levels.h"

#include <cstring>

#include "lockstep/forest/bin_block.h"

namespace lockstep::forest {
namespace {

using Bytes = uint8_t __attribute__((vector_size(BinBlock::kTile)));
using Walk = void (*)(const TopLevels&, const uint8_t*, uint8_t*);

// The places below node kNode, which has kLevels levels of nodes under it;
// the first place is kPlace.
template <int kLevels, size_t kNode, size_t kPlace>
[[gnu::always_inline]] inline void
walk_node(const TopLevels& top, const uint8_t* tile, Bytes& places) {
  const auto& node = top.nodes[kNode];
  Bytes bins;
  std::memcpy(
      &bins, tile + size_t{node.feature} * BinBlock::kTile, sizeof bins);
  const auto right = bins > (Bytes{} + node.bin);
  if constexpr (kLevels == 0) {
    places = right ? Bytes{} + static_cast<uint8_t>(kPlace + 1)
                   : Bytes{} + static_cast<uint8_t>(kPlace);
  } else {
    Bytes below_left;
    Bytes below_right;
    walk_node<kLevels - 1, 2 * kNode + 1, kPlace>(top, tile, below_left);
    walk_node<kLevels - 1, 2 * kNode + 2, kPlace + (1 << kLevels)>(
        top, tile, below_right);
    places = right ? below_right : below_left;
  }
}

[[gnu::always_inline]] inline void
walk_all(const TopLevels& top, const uint8_t* tile, uint8_t* places) {
  Bytes result;
  walk_node<kTopLevels - 1, 0, 0>(top, tile, result);
  std::memcpy(places, &result, sizeof result);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void
walk_avx2(const TopLevels& top, const uint8_t* tile, uint8_t* places) {
  walk_all(top, tile, places);
}
__attribute__((target("avx512f,avx512bw,prefer-vector-width=512"))) void
walk_avx512(const TopLevels& top, const uint8_t* tile, uint8_t* places) {
  walk_all(top, tile, places);
}
#endif

Walk choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) {
    return walk_avx512;
  }
  if (__builtin_cpu_supports("avx2")) {
    return walk_avx2;
  }
#endif
  return walk_top_plain;
}

}  // namespace

void walk_top_plain(
    const TopLevels& top,
    const uint8_t* tile,
    uint8_t* places) {
  walk_all(top, tile, places);
}

void walk_top(const TopLevels& top, const uint8_t* tile, uint8_t* places) {
  static const Walk walk = choose();
  walk(top, tile, places);
}

}  // namespace lockstep::forest
