#include <algorithm>

#include "lockstep/launch/refusals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Refusals, TellsEachKindOnceAndThenCounts) {
  os::FakeClock clock;
  ::testing::internal::CaptureStderr();
  {
    Refusals refusals(clock);
    for (int i = 0; i < 500; ++i) {
      refusals.take("10.0.0.9:1", "10.0.0.9:1 sent garbage");
      refusals.take("10.0.0.8:2", "reading from 10.0.0.8:2: torn");
      refusals.take("10.0.0.7:3", "reading from 10.0.0.7:3: torn");
      refusals.look();
    }
    EXPECT_EQ(refusals.count(), 1500);
    clock.advance(seconds(11));
    refusals.look();
    refusals.look();
    refusals.take("10.0.0.6:4", "10.0.0.6:4 sent garbage");
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::ranges::count(log, '\n'), 5) << log;
  EXPECT_THAT(log, HasSubstr("refused a connection: 10.0.0.9:1 sent garbage"));
  EXPECT_THAT(
      log, HasSubstr("refused a connection: 10.0.0.8:2 reading from it: torn"));
  EXPECT_THAT(
      log,
      HasSubstr("refused 499 more connections, the last: 10.0.0.9:1 sent"));
  EXPECT_THAT(
      log,
      HasSubstr("refused 999 more connections, the last: 10.0.0.7:3 reading"));
  EXPECT_THAT(log, HasSubstr("refused 1 more connections, the last: 10.0.0.6"));
}

TEST(Refusals, AStrangerCannotMakeUpKinds) {
  os::FakeClock clock;
  ::testing::internal::CaptureStderr();
  {
    Refusals refusals(clock);
    for (int i = 0; i < 1000; ++i) {
      refusals.take("10.0.0.9:1", "announced " + std::to_string(i));
    }
  }
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_LT(std::ranges::count(log, '\n'), 40);
  EXPECT_THAT(log, HasSubstr("967 more connections"));
  EXPECT_THAT(log, Not(HasSubstr("announced 40")));
}

}  // namespace
}  // namespace lockstep::launch
