#include "lockstep/train/allocator.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/types.h>

#include <fstream>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace lockstep::train {
namespace {

TEST(BlockSize, RoundsByAtMostAnEighth) {
  for (size_t bytes : {1u << 19, 1000003u, 3u << 20, 123456789u}) {
    EXPECT_GE(block_size(bytes), bytes);
    EXPECT_LE(
        static_cast<double>(block_size(bytes)),
        static_cast<double>(bytes) * 1.126 + 4096);
  }
}

TEST(CachingAllocator, GivesAFreedBlockToTheNextOfItsSize) {
  install_caching_allocator();
  void* first = nullptr;
  {
    const auto tensor = at::ones({1 << 20});
    first = tensor.data_ptr();
  }
  const auto again = at::zeros({1 << 20});
  EXPECT_EQ(again.data_ptr(), first);
  EXPECT_EQ(again.sum().item<float>(), 0);
}

TEST(CachingAllocator, ServesThreadsAndMovesBetweenThem) {
  install_caching_allocator();
  std::vector<at::Tensor> made(4);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&made, i] {
      for (int round = 0; round < 20; ++round) {
        made[i] = at::full({300000 + 1000 * round}, i, at::kFloat);
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(made[i].max().item<float>(), i);
    EXPECT_EQ(made[i].min().item<float>(), i);
  }
}

TEST(CachingAllocator, GivesBackWhenMemoryRunsOut) {
  install_caching_allocator();
  rlimit before{};
  getrlimit(RLIMIT_DATA, &before);
  { const auto large = at::ones({64 << 20}); }  // 256 MiB, cached
  // Not another 320 MiB above what is mapped now.
  std::ifstream status("/proc/self/status");
  uint64_t mapped = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmData:")) {
      mapped = std::stoull(line.substr(7)) * 1024;
    }
  }
  rlimit tight = before;
  tight.rlim_cur = mapped + (128 << 20);
  ASSERT_EQ(setrlimit(RLIMIT_DATA, &tight), 0);
  EXPECT_NO_THROW(at::ones({80 << 20}));
  EXPECT_THROW(at::ones({1 << 30}), std::bad_alloc);
  setrlimit(RLIMIT_DATA, &before);
  release_cached_memory();
}

}  // namespace
}  // namespace lockstep::train
