#include "lockstep/forest/top_levels.h"

#include <cstring>

#include "lockstep/forest/bin_block.h"

namespace lockstep::forest {
namespace {

using Bytes = uint8_t __attribute__((vector_size(BinBlock::kTile)));
using Mask = int8_t __attribute__((vector_size(BinBlock::kTile)));
using Walk = void (*)(const TopLevels&, const uint8_t*, uint8_t*);

// Which rows go right at a node.
[[gnu::always_inline]] inline void
go_right(const TopLevels::Node& node, const uint8_t* tile, Mask& right) {
  Bytes bins;
  std::memcpy(
      &bins, tile + size_t{node.feature} * BinBlock::kTile, sizeof bins);
  right = bins > (Bytes{} + node.bin);
}

// From the lowest levels up: what each row would find below a node. A
// recursion that is unrolled is no faster, and takes minutes to compile under
// the sanitizers.
[[gnu::always_inline]] inline void
walk_all(const TopLevels& top, const uint8_t* tile, uint8_t* places) {
  constexpr size_t kPairs = size_t{1} << (kTopLevels - 2);
  Bytes below[kPairs];
  for (size_t i = 0; i < kPairs; ++i) {
    const size_t node = kPairs - 1 + i;
    Mask right;
    Mask left_then;
    Mask right_then;
    go_right(top.nodes[node], tile, right);
    go_right(top.nodes[2 * node + 1], tile, left_then);
    go_right(top.nodes[2 * node + 2], tile, right_then);
    const auto first = static_cast<uint8_t>(4 * i);
    // A mask is -1.
    below[i] = (Bytes{} + first) - 2 * reinterpret_cast<Bytes>(right) -
               reinterpret_cast<Bytes>(right ? right_then : left_then);
  }
  for (size_t level = kPairs / 2; level > 0; level /= 2) {
    for (size_t i = 0; i < level; ++i) {
      Mask right;
      go_right(top.nodes[level - 1 + i], tile, right);
      below[i] = right ? below[2 * i + 1] : below[2 * i];
    }
  }
  std::memcpy(places, below, sizeof(Bytes));
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
