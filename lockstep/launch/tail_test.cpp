#include "lockstep/launch/tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class TailTest : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = std::filesystem::temp_directory_path() /
            ("lockstep-tail-" + std::to_string(::getpid()));
  }
  void TearDown() override { std::filesystem::remove(path_); }
  void append(const std::string& text) {
    std::ofstream(path_, std::ios::app) << text;
  }
  std::filesystem::path path_;
};

TEST_F(TailTest, FollowsAFileThatComesLater) {
  Tail tail(path_);
  EXPECT_THAT(tail.read(100), IsEmpty());
  append("a\nb");
  EXPECT_THAT(tail.read(100), ElementsAre("a"));
  append("c\n\nd");
  EXPECT_THAT(tail.read(100), ElementsAre("bc", ""));
  EXPECT_THAT(tail.rest(), ElementsAre("d"));
  EXPECT_THAT(tail.rest(), IsEmpty());
}

TEST_F(TailTest, ReadsNoMoreThanTheRoom) {
  append("one\ntwo\n");
  Tail tail(path_);
  EXPECT_THAT(tail.read(5), ElementsAre("one"));
  EXPECT_EQ(tail.left(), 3);
  EXPECT_THAT(tail.read(100), ElementsAre("two"));
  EXPECT_EQ(tail.left(), 0);
}

TEST_F(TailTest, CutsALineWithoutEnd) {
  append(std::string(200000, 'x'));
  Tail tail(path_);
  size_t bytes = 0;
  const auto pieces = tail.read(1 << 20);
  EXPECT_GE(pieces.size(), 2);
  for (const auto& piece : pieces) {
    bytes += piece.size();
  }
  for (const auto& piece : tail.rest()) {
    bytes += piece.size();
  }
  EXPECT_EQ(bytes, 200000);
}

TEST_F(TailTest, ReturnsEndLinesWhereTheyShould) {
  append("\r1/3\r2/3\r");
  Tail lines(path_);
  Tail tail(path_, 0, Tail::Ends::kReturns);
  EXPECT_THAT(tail.read(100), ElementsAre("", "1/3", "2/3"));
  // One end, also when it comes in two parts or is read in two.
  append("\na\r\nb\n\n\rc");
  EXPECT_THAT(tail.read(3), ElementsAre("a"));
  EXPECT_THAT(tail.read(100), ElementsAre("b", "", ""));
  EXPECT_THAT(tail.rest(), ElementsAre("c"));
  EXPECT_THAT(lines.read(100), ElementsAre("\r1/3\r2/3\r", "a\r", "b", ""));
}

TEST_F(TailTest, CutsALineWithoutEndBetweenWords) {
  const std::string begin(65530, 'x');
  append(begin + " a-secret");
  Tail tail(path_);
  EXPECT_THAT(tail.read(1 << 20), ElementsAre(begin + " "));
  append("-word end\n");
  EXPECT_THAT(tail.read(1 << 20), ElementsAre("a-secret-word end"));
}

TEST_F(TailTest, FindsTheLastLines) {
  for (int i = 0; i < 5000; ++i) {
    append(std::to_string(i) + "\n");
  }
  append("end\n\n");
  EXPECT_THAT(last_lines(path_, 3), ElementsAre("4998", "4999", "end"));
  EXPECT_THAT(last_lines(path_ / "absent", 3), IsEmpty());
}

}  // namespace
}  // namespace lockstep::launch
