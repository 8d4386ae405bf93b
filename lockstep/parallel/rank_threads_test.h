#pragma once

// For tests: runs a body as several ranks, each a thread of this process.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/collective/factory.h"
#include "lockstep/wire/rendezvous.h"

namespace lockstep::parallel {

struct RankThreads {
  std::string kind = "host";
  int device = -1;
  bool apart = false;  // each rank on a host of its own
};

// Fails the test for each rank whose body throws.
inline void run_ranks(
    int world,
    const std::function<void(collective::Communicator&)>& body,
    const RankThreads& how = {}) {
  auto rendezvous = wire::make_local_rendezvous();
  std::vector<std::thread> threads;
  std::vector<std::string> failures(static_cast<size_t>(world));
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        at::set_num_threads(1);
        collective::GroupOptions options;
        options.rank = rank;
        options.world_size = world;
        options.kind = how.kind;
        options.device = how.device;
        options.timeout = std::chrono::seconds(60);
        if (how.apart) {
          options.host_identity = "host-" + std::to_string(rank);
          options.advertise_host = "127.0.0.1";
        }
        auto group = collective::make_communicator(options, *rendezvous);
        body(*group);
        group->barrier();
      } catch (const std::exception& failure) {
        failures[static_cast<size_t>(rank)] = failure.what();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  for (const auto& failure : failures) {
    EXPECT_EQ(failure, "");
  }
}

}  // namespace lockstep::parallel
