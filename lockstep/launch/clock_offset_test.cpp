#include "lockstep/launch/clock_offset.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

class ClockOffsetTest : public ::testing::Test {
 protected:
  // A message of the other machine that takes `way`.
  void message(Duration way) {
    const os::Instant sent = clock_.now() + ahead_;
    clock_.advance(way);
    offset_.take(sent, clock_.now());
  }
  // What happens there now, as we place it later.
  Duration error_of(Duration later) {
    const os::Instant here = clock_.now();
    const os::Instant there = here + ahead_;
    clock_.advance(later);
    return offset_.to_here(there, clock_.now()) - here;
  }

  os::FakeClock clock_;
  Duration ahead_ = hours(1000);
  ClockOffset offset_;
};

TEST_F(ClockOffsetTest, GoesByTheQuickestMessage) {
  message(milliseconds(80));
  EXPECT_EQ(error_of(seconds(1)), milliseconds(80));
  message(milliseconds(2));
  message(milliseconds(300));
  EXPECT_EQ(error_of(seconds(1)), milliseconds(2));
}

TEST_F(ClockOffsetTest, FollowsAClockThatDrifts) {
  // A millisecond a second is more than any clock does.
  for (int second = 0; second < 120; ++second) {
    clock_.advance(seconds(1));
    ahead_ -= milliseconds(1);
    message(milliseconds(1));
  }
  EXPECT_GE(error_of(seconds(1)), milliseconds(-30));
  for (int second = 0; second < 120; ++second) {
    clock_.advance(seconds(1));
    ahead_ += milliseconds(1);
    message(milliseconds(1));
  }
  EXPECT_EQ(error_of(seconds(1)), milliseconds(1));
}

TEST_F(ClockOffsetTest, NothingHappensAfterNow) {
  EXPECT_EQ(offset_.to_here(os::Instant::max(), clock_.now()), clock_.now());
  message(milliseconds(5));
  EXPECT_EQ(error_of(milliseconds(1)), milliseconds(1));
  offset_.reset();
  EXPECT_EQ(offset_.to_here(os::Instant(), clock_.now()), clock_.now());
}

}  // namespace
}  // namespace lockstep::launch
