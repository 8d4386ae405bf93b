#include "lockstep/launch/redaction.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

TEST(Redaction, HidesAValueBeforeItIsQuoted) {
  Job job;
  job.secret_values = {{"A", "a'bc123"}, {"B", "two words"}};
  EXPECT_EQ(shown_line(job, {"echo", "x a'bc123"}), "echo 'x ***'");
  EXPECT_EQ(shown_line(job, {"echo", "two", "words"}), "echo ***");
  EXPECT_EQ(shown_line(Job(), {"echo", "a'b"}), "echo 'a'\\''b'");
}

}  // namespace
}  // namespace lockstep::launch
