#include "lockstep/collective/shared_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

namespace lockstep::collective {
namespace {

TEST(Memory, GivesAlignedZerosThatNeverOverlap) {
  auto memory = Memory::create(64 << 20);
  std::mt19937 random(1);
  std::vector<Buffer> buffers;
  for (int round = 0; round < 2000; ++round) {
    if (!buffers.empty() && random() % 2 == 0) {
      buffers.erase(
          buffers.begin() + static_cast<ptrdiff_t>(random() % buffers.size()));
      continue;
    }
    const size_t bytes = random() % (random() % 8 == 0 ? 300000 : 2000);
    Buffer buffer = memory->allocate(bytes);
    auto* data = static_cast<std::byte*>(buffer.data());
    ASSERT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0U);
    ASSERT_TRUE(std::all_of(data, data + bytes, [](std::byte b) {
      return b == std::byte{0};
    }));
    for (const Buffer& other : buffers) {
      auto* at = static_cast<std::byte*>(other.data());
      ASSERT_TRUE(data + bytes <= at || at + other.bytes() <= data);
    }
    std::memset(data, 0xee, bytes);
    buffers.push_back(buffer);
  }
}

TEST(Memory, IsReusedAndNeverMoves) {
  auto memory = Memory::create(64 << 20);
  Buffer kept = memory->allocate(1000);
  void* at = kept.data();
  const void* first = memory->allocate(10 << 20).data();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(memory->allocate(10 << 20).data(), first);
  }
  EXPECT_EQ(kept.data(), at);
}

TEST(Memory, SaysWhenItIsFull) {
  auto memory = Memory::create(8 << 20);
  Buffer most = memory->allocate(6 << 20);
  EXPECT_THROW(memory->allocate(6 << 20), CollectiveError);
  most = Buffer();
  EXPECT_NO_THROW(memory->allocate(6 << 20));
}

TEST(Memory, OutlivesItsHandleThroughBuffers) {
  Buffer buffer;
  {
    auto memory = Memory::create(8 << 20);
    buffer = memory->allocate(1 << 20);
  }
  std::memset(buffer.data(), 1, buffer.bytes());
}

TEST(Memory, IsSeenThroughItsDescriptorAlsoWhenItGrows) {
  auto memory = Memory::create(256 << 20);
  const MappedMemory other(memory->descriptor(), memory->reserve());
  std::vector<Buffer> kept;
  for (int i = 0; i < 5; ++i) {
    Buffer buffer = kept.emplace_back(memory->allocate(20 << 20));
    auto* last = static_cast<std::byte*>(buffer.data()) + (20 << 20) - 1;
    *last = std::byte{42};
    const auto offset = memory->find(last, 1);
    ASSERT_TRUE(offset);
    EXPECT_EQ(other.data()[*offset], std::byte{42});
  }
  const int outside = 0;
  EXPECT_FALSE(memory->find(&outside, sizeof outside));
}

}  // namespace
}  // namespace lockstep::collective
