#include "lockstep/fetch/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace lockstep::fetch {
namespace {

TEST(Workers, EachOnce) {
  std::vector<std::atomic<int>> seen(1000);
  ASSERT_TRUE(run_workers(seen.size(), 8, [&](size_t i) -> Result<void> {
    ++seen[i];
    return {};
  }));
  for (const auto& count : seen) {
    EXPECT_EQ(count, 1);
  }
  EXPECT_TRUE(run_workers(0, 8, [](size_t) -> Result<void> { return {}; }));
}

TEST(Workers, TheFirstErrorEndsIt) {
  std::atomic<size_t> begun{0};
  const auto done = run_workers(100000, 2, [&](size_t i) -> Result<void> {
    ++begun;
    if (i == 10) {
      return Error(ErrorCode::kIo, "ten");
    }
    return {};
  });
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().message(), "ten");
  EXPECT_LT(begun, 100000U);
}

}  // namespace
}  // namespace lockstep::fetch
