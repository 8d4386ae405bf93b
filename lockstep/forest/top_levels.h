#pragma once

// The first levels of a tree for 64 rows at once: every node there compares its
// feature of all of them, and answers are selected on the way up. No row waits
// for memory, and a row costs a few instructions. Pure; thread-safe. The
// instructions are chosen by the processor at the first use.

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::forest {

inline constexpr int kTopLevels = 7;

struct TopLevels {
  struct Node {
    uint32_t feature = 0;
    uint8_t bin = 255;  // left when the row's is not above it
  };
  // The children of i are 2 i + 1 and 2 i + 2.
  std::array<Node, (1 << kTopLevels) - 1> nodes{};
};

// Which of the 2^kTopLevels places below each of the 64 rows of a tile comes
// to.
void walk_top(const TopLevels& top, const uint8_t* tile, uint8_t* places);

// The same for any processor; what the tests compare with.
void walk_top_plain(const TopLevels& top, const uint8_t* tile, uint8_t* places);

}  // namespace lockstep::forest
