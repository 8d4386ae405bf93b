// How groups fail: deadlines, aborts, dead and departed peers, disagreement
// and strangers. Times are printed, and bounded generously: the machine may be
// busy.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "lockstep/collective/factory.h"
#include "lockstep/collective/group_fixture.h"
#include "lockstep/collective/host_group.h"
#include "lockstep/collective/shared_memory.h"

namespace lockstep::collective {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Whether the group dies in good time. Waits for nothing else.
bool died(const Communicator& c) {
  const auto deadline = os::Deadline::after(seconds(60));
  while (!c.failed() && !deadline.passed()) {
    std::this_thread::yield();
  }
  return c.failed();
}

class Failing : public testing::TestWithParam<Mode> {
 protected:
  GroupCase group(int size) const { return {.mode = GetParam(), .size = size}; }
};

TEST_P(Failing, DeadlineNamesTheMissingRank) {
  GroupCase late = group(4);
  late.timeout = milliseconds(1500);
  run_group(late, [](Communicator& c) {
    c.barrier();
    if (c.rank() == 2) {
      // Arrives at nothing, and stays until the group is dead.
      EXPECT_TRUE(died(c));
      return;
    }
    std::vector<float> data(5);
    try {
      c.all_reduce(
          data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
      ADD_FAILURE() << "rank " << c.rank() << " did not fail";
    } catch (const CollectiveError& error) {
      EXPECT_TRUE(contains(error.what(), "all_reduce of 5 float32"))
          << error.what();
      EXPECT_EQ(error.ranks(), std::vector<int>{2}) << error.what();
    }
    // Dead from now on, with the same reason.
    EXPECT_NE(error_of([&] { c.barrier(); }), "");
  });
}

TEST_P(Failing, AbortFreesEveryWaiter) {
  run_group(group(4), [](Communicator& c) {
    Buffer buffer = c.allocate(4096);
    auto* data = static_cast<int32_t*>(buffer.data());
    if (c.rank() == 3) {
      c.barrier();
      // The others are, or will soon be, inside a wait that cannot end.
      const auto start = Clock::now();
      c.abort("rank 3 has had enough");
      EXPECT_LT(Clock::now() - start, seconds(1));
      EXPECT_TRUE(contains(error_of([&] { c.barrier(); }), "had enough"));
      return;
    }
    // The abort may reach us before the barrier is over.
    const auto start = Clock::now();
    const std::string error = error_of([&] {
      c.barrier();
      c.all_reduce(data, 1024, DataType::kInt32, ReduceOp::kSum);
    });
    const auto took = Clock::now() - start;
    EXPECT_TRUE(contains(error, "rank 3 has had enough")) << error;
    EXPECT_LT(took, seconds(1));
    fmt::print("rank {} was freed after {}\n", c.rank(), format_duration(took));
    data[0] = 7;  // memory stays valid
    EXPECT_EQ(data[0], 7);
  });
}

TEST_P(Failing, AbortFromAnotherThreadFreesAsynchronousWaits) {
  run_group(group(2), [](Communicator& c) {
    std::vector<float> data(300000, 1);
    if (c.rank() == 1) {
      c.barrier();
      std::thread([&] { c.abort("stop"); }).join();
      return;
    }
    // The abort may come before, between or after these.
    const auto error = error_of([&] {
      c.barrier();
      Work work = c.all_reduce_async(
          data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
      work.wait();
    });
    EXPECT_TRUE(contains(error, "stop")) << error;
    EXPECT_NE(error_of([&] { c.barrier(); }), "");
    EXPECT_TRUE(c.failed());
  });
}

TEST_P(Failing, RanksThatDisagreeAreTold) {
  run_group(group(3), [](Communicator& c) {
    std::vector<float> data(64);
    const std::string error = error_of([&] {
      if (c.rank() == 1) {
        c.all_reduce(data.data(), 33, DataType::kFloat32, ReduceOp::kSum);
      } else {
        c.all_reduce(data.data(), 32, DataType::kFloat32, ReduceOp::kSum);
      }
    });
    EXPECT_TRUE(contains(error, "disagree on operation")) << error;
    EXPECT_TRUE(contains(error, "rank 1 called") || contains(error, "33"))
        << error;
    EXPECT_TRUE(contains(error, "of 33 float32")) << error;
    EXPECT_TRUE(contains(error, "of 32 float32")) << error;
  });
  run_group(group(2), [](Communicator& c) {
    std::vector<double> data(64);
    const std::string error = error_of([&] {
      if (c.rank() == 1) {
        c.broadcast(data.data(), 8, DataType::kFloat64, 1);
      } else {
        c.all_gather(data.data(), 8, DataType::kFloat64);
      }
    });
    EXPECT_TRUE(contains(error, "broadcast of 8 float64 from rank 1")) << error;
    EXPECT_TRUE(contains(error, "all_gather of 8 float64")) << error;
  });
}

TEST_P(Failing, ARankThatLeavesEarlyIsNamed) {
  run_group(group(2), [](Communicator& c) {
    if (c.rank() == 1) {
      c.barrier();
      return;
    }
    const auto start = Clock::now();
    // It may be gone before we are out of the first.
    const std::string error = error_of([&] {
      c.barrier();
      c.barrier();
    });
    EXPECT_TRUE(contains(error, "rank 1 has left")) << error;
    EXPECT_LT(Clock::now() - start, seconds(5));
  });
}

TEST_P(Failing, BadRootIsRefused) {
  run_group(group(2), [](Communicator& c) {
    float value = 0;
    EXPECT_TRUE(contains(
        error_of([&] { c.broadcast(&value, 1, DataType::kFloat32, 2); }),
        "ranks 0 to 1"));
    c.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Modes,
    Failing,
    testing::Values(
        Mode::kThreads,
        Mode::kProcesses,
        Mode::kRing,
        Mode::kHosts,
        Mode::kBlocks),
    [](const auto& info) { return to_string(info.param); });

class Dying : public testing::TestWithParam<Mode> {};

TEST_P(Dying, AKilledPeerIsNamedByAllSurvivors) {
  for (const int victim : {1, 3}) {
    run_group(
        {.mode = GetParam(), .size = 4},
        [victim](Communicator& c) {
          Buffer buffer = c.allocate(1 << 20);
          auto* data = static_cast<float*>(buffer.data());
          constexpr size_t kCount = (1 << 20) / sizeof(float);
          if (c.rank() == victim) {
            c.barrier();
            raise(SIGKILL);
          }
          const auto start = Clock::now();
          try {
            c.barrier();  // who leaves it late may learn of it here
            c.all_reduce(data, kCount, DataType::kFloat32, ReduceOp::kSum);
            ADD_FAILURE() << "rank " << c.rank() << " did not fail";
          } catch (const CollectiveError& error) {
            EXPECT_TRUE(
                contains(error.what(), fmt::format("rank {} is gone", victim)))
                << error.what();
            EXPECT_EQ(error.ranks(), std::vector<int>{victim});
          }
          const auto took = Clock::now() - start;
          EXPECT_LT(took, seconds(2));
          fmt::print(
              "rank {} knew after {}\n", c.rank(), format_duration(took));
          std::memset(data, 1, 1 << 20);  // memory stays valid
        },
        [victim](int rank) { return rank == victim; });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Modes,
    Dying,
    testing::Values(Mode::kProcesses, Mode::kBlocks),
    [](const auto& info) { return to_string(info.param); });

TEST(Joining, NamesTheRanksThatDidNotCome) {
  auto rendezvous = wire::make_local_rendezvous();
  GroupOptions options;
  options.rank = 1;
  options.world_size = 4;
  options.kind = "host";
  options.timeout = milliseconds(50);
  options.memory = Memory::create(1 << 20);
  try {
    make_communicator(options, *rendezvous);
    FAIL();
  } catch (const CollectiveError& error) {
    EXPECT_EQ(error.ranks(), (std::vector<int>{0, 2, 3})) << error.what();
    EXPECT_TRUE(contains(error.what(), "ranks 0, 2 and 3 of 4"));
  }
}

TEST(Joining, AnotherKeyIsRefused) {
  for (const bool same_host : {true, false}) {
    auto rendezvous = wire::make_local_rendezvous();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        GroupOptions options;
        options.rank = rank;
        options.world_size = 2;
        options.kind = "host";
        options.timeout = milliseconds(800);
        options.key.fill(static_cast<uint8_t>(rank));
        options.host_identity = same_host ? "a" : fmt::format("{}", rank);
        options.advertise_host = "127.0.0.1";
        options.memory = Memory::create(1 << 20);
        const std::string error =
            error_of([&] { make_communicator(options, *rendezvous); });
        EXPECT_NE(error, "") << "rank " << rank;
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
}

TEST(Joining, BadOptionsAreExplained) {
  auto rendezvous = wire::make_local_rendezvous();
  GroupOptions options;
  options.kind = "gloo";
  const std::string unknown =
      error_of([&] { make_communicator(options, *rendezvous); });
  EXPECT_TRUE(contains(unknown, "'gloo' is unknown; accepted: auto, host"))
      << unknown;
  options.kind = "nccl";
  if (available_kinds().back() != "nccl") {
    EXPECT_TRUE(contains(
        error_of([&] { make_communicator(options, *rendezvous); }),
        "not in this build"));
  }
  options.kind = "host";
  options.rank = 2;
  EXPECT_TRUE(contains(
      error_of([&] { make_communicator(options, *rendezvous); }),
      "rank 2 of 1"));
}

TEST(Generations, BuffersStayWhereTheyAreAndAreSharedAgain) {
  std::vector<std::shared_ptr<wire::Rendezvous>> tables = {
      wire::make_local_rendezvous(), wire::make_local_rendezvous()};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      GroupOptions options;
      options.rank = rank;
      options.world_size = 2;
      options.kind = "host";
      options.host_identity = "a";
      options.memory = Memory::create(64 << 20);
      auto first = make_communicator(options, *tables[0]);
      Buffer buffer = first->allocate(4096);
      auto* data = static_cast<int32_t*>(buffer.data());
      std::fill_n(data, 1024, 1);
      first->all_reduce(data, 1024, DataType::kInt32, ReduceOp::kSum);
      first->barrier();
      options.memory = first->memory();
      first->abort("a new generation");
      first.reset();
      options.group = "1";
      auto second = make_communicator(options, *tables[1]);
      second->all_reduce(data, 1024, DataType::kInt32, ReduceOp::kSum);
      EXPECT_EQ(data[1023], 4);
      EXPECT_EQ(second->memory(), options.memory);
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(Single, DoesNothingAndCanBeAborted) {
  auto single = make_single();
  Buffer buffer = single->allocate(100);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
  auto* data = static_cast<uint8_t*>(buffer.data());
  EXPECT_EQ(data[99], 0);
  data[0] = 3;
  single->all_reduce(data, 100, DataType::kUint8, ReduceOp::kSum);
  EXPECT_EQ(data[0], 3);
  EXPECT_TRUE(
      single->all_reduce_async(data, 1, DataType::kUint8, ReduceOp::kSum)
          .done());
  single->abort("over");
  EXPECT_EQ(error_of([&] { single->barrier(); }), "over");
}

}  // namespace
}  // namespace lockstep::collective
