// Built where NCCL is; skipped where no GPU is. One GPU is enough: NCCL takes a
// group of one, and two ranks on it are what it refuses.
#include "lockstep/collective/nccl.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "lockstep/collective/group_fixture.h"
#include "lockstep/wire/rendezvous.h"

namespace lockstep::collective {
namespace {

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (gpu_address(0).empty()) {
      GTEST_SKIP() << "no GPU here";
    }
  }
};

std::unique_ptr<Communicator> make_group_of_one() {
  GroupOptions options;
  options.kind = "nccl";
  options.device = 0;
  options.timeout = std::chrono::seconds(60);
  return make_communicator(options, *wire::make_local_rendezvous());
}

// Bytes that are a valid, small number of every type.
std::vector<uint8_t> pattern(size_t bytes) {
  std::vector<uint8_t> data(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    data[i] = static_cast<uint8_t>(i % 61);
  }
  return data;
}

// Every operation, blocking and not; a group of one leaves the data as it is.
void run_all(Communicator& group, void* data, size_t count, DataType type) {
  for (const ReduceOp op : kAllOps) {
    group.all_reduce(data, count, type, op);
    group.reduce_scatter(data, count, type, op);
    group.all_reduce_async(data, count, type, op).wait();
    group.reduce_scatter_async(data, count, type, op).wait();
  }
  group.all_gather(data, count, type);
  group.broadcast(data, count, type, 0);
  group.all_gather_async(data, count, type).wait();
  Work work = group.broadcast_async(data, count, type, 0);
  const Timing timing = work.wait();
  EXPECT_GE(timing.busy, 0);
  EXPECT_TRUE(work.done());
  group.barrier();
}

TEST_F(Nccl, GroupOfOneTakesHostMemory) {
  const auto group = make_group_of_one();
  EXPECT_EQ(group->name(), "nccl");
  EXPECT_TRUE(group->takes_device_memory());
  for (const DataType type : kAllTypes) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{4099}}) {
      const auto expected = pattern(count * size_of(type));
      auto data = expected;
      run_all(*group, data.data(), count, type);
      EXPECT_EQ(data, expected) << static_cast<int>(type) << " x " << count;
    }
  }
}

TEST_F(Nccl, GroupOfOneTakesItsOwnBuffers) {
  const auto group = make_group_of_one();
  for (const DataType type : kAllTypes) {
    const size_t count = 4099;
    const size_t bytes = count * size_of(type);
    const Buffer buffer = group->allocate(bytes);
    std::vector<uint8_t> seen(bytes, 1);
    ASSERT_EQ(
        cudaMemcpy(seen.data(), buffer.data(), bytes, cudaMemcpyDefault),
        cudaSuccess);
    EXPECT_EQ(seen, std::vector<uint8_t>(bytes)) << "not zeroed";
    const auto expected = pattern(bytes);
    ASSERT_EQ(
        cudaMemcpy(buffer.data(), expected.data(), bytes, cudaMemcpyDefault),
        cudaSuccess);
    run_all(*group, buffer.data(), count, type);
    ASSERT_EQ(
        cudaMemcpy(seen.data(), buffer.data(), bytes, cudaMemcpyDefault),
        cudaSuccess);
    EXPECT_EQ(seen, expected) << static_cast<int>(type);
  }
}

TEST_F(Nccl, AnAbortEndsTheGroup) {
  const auto group = make_group_of_one();
  group->abort("enough");
  EXPECT_TRUE(group->failed());
  try {
    group->barrier();
    FAIL();
  } catch (const CollectiveError& failure) {
    EXPECT_STREQ(failure.what(), "enough");
  }
}

// What two ranks, each a thread, with these devices say.
std::vector<std::string> two_ranks(
    const std::string& kind,
    std::vector<int> devices) {
  const auto rendezvous = wire::make_local_rendezvous();
  std::vector<std::string> said(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        GroupOptions options;
        options.rank = rank;
        options.world_size = 2;
        options.kind = kind;
        options.device = devices[static_cast<size_t>(rank)];
        options.timeout = std::chrono::seconds(60);
        const auto group = make_communicator(options, *rendezvous);
        int64_t sum = 1;
        group->all_reduce(&sum, 1, DataType::kInt64, ReduceOp::kSum);
        group->barrier();
        said[static_cast<size_t>(rank)] =
            fmt::format("{} {}", group->name(), sum);
      } catch (const CollectiveError& failure) {
        said[static_cast<size_t>(rank)] = failure.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return said;
}

TEST_F(Nccl, AutoLeavesASharedGpuToTheHostCollective) {
  const std::vector<std::string> host = {"host 2", "host 2"};
  EXPECT_EQ(two_ranks("auto", {0, 0}), host);
}

TEST_F(Nccl, AutoLeavesHostMemoryToTheHostCollective) {
  const std::vector<std::string> host = {"host 2", "host 2"};
  EXPECT_EQ(two_ranks("auto", {-1, -1}), host);
  EXPECT_EQ(two_ranks("auto", {0, -1}), host);
}

TEST_F(Nccl, ASharedGpuIsRefusedByName) {
  for (const std::string& said : two_ranks("nccl", {0, 0})) {
    EXPECT_NE(said.find("ranks 0 and 1 share a GPU"), std::string::npos)
        << said;
  }
}

}  // namespace
}  // namespace lockstep::collective
