#include "lockstep/base/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Text, IsTrimmedAtBothSides) {
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(trim("x"), "x");
  EXPECT_EQ(trim(""), "");
  EXPECT_EQ(trim(" \n\f\v"), "");
}

TEST(Text, IsLowered) {
  EXPECT_EQ(lower("Content-Type 42 \xc3\x84"), "content-type 42 \xc3\x84");
}

TEST(Text, IsReadByLines) {
  EXPECT_THAT(lines_of("a\n\nb\n"), ElementsAre("a", "", "b"));
  EXPECT_THAT(lines_of("a\nb"), ElementsAre("a", "b"));
  EXPECT_THAT(lines_of("\n"), ElementsAre(""));
  EXPECT_THAT(lines_of(""), IsEmpty());
}

}  // namespace
}  // namespace lockstep
