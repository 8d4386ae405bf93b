#include "lockstep/os/clock.h"

#include <gtest/gtest.h>

namespace lockstep::os {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

TEST(FakeClock, MovesOnlyWhenTold) {
  FakeClock clock(100.0);
  EXPECT_EQ(clock.unix_seconds(), 100.0);
  Instant before = clock.now();
  EXPECT_EQ(clock.now(), before);
  clock.advance(seconds(2));
  EXPECT_EQ(clock.unix_seconds(), 102.0);
  clock.sleep_for(seconds(3));
  EXPECT_EQ(clock.now() - before, seconds(5));
}

TEST(Deadline, PassesAtItsInstant) {
  FakeClock clock;
  Deadline deadline = Deadline::after(seconds(5), clock);
  EXPECT_FALSE(deadline.passed(clock));
  EXPECT_EQ(deadline.left(clock), seconds(5));
  clock.advance(seconds(5));
  EXPECT_TRUE(deadline.passed(clock));
  clock.advance(seconds(5));
  EXPECT_EQ(deadline.left(clock), seconds(0));
}

TEST(Deadline, NeverAndLongOnesFitATimeout) {
  FakeClock clock;
  EXPECT_FALSE(Deadline::never().passed(clock));
  EXPECT_EQ(Deadline::never().left(clock), hours(1));
  EXPECT_EQ(Deadline::after(Duration::max(), clock).left(clock), hours(1));
  EXPECT_EQ(Deadline::after(hours(9), clock).left(clock), hours(1));
  EXPECT_TRUE(Deadline::after(seconds(-1), clock).passed(clock));
}

TEST(RealClock, KnowsTheDateAndGoesForward) {
  EXPECT_GT(real_clock().unix_seconds(), 1.7e9);
  Instant before = real_clock().now();
  real_clock().sleep_for(std::chrono::microseconds(10));
  EXPECT_GT(real_clock().now(), before);
}

}  // namespace
}  // namespace lockstep::os
