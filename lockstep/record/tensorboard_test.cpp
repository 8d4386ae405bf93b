#include "lockstep/record/tensorboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "lockstep/base/crc32c.h"

namespace lockstep::record {
namespace {

uint32_t unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8U;
  return (rotated >> 17) | (rotated << 15);
}

// The payloads of a file, with their sums checked.
std::vector<std::string> records_of(const std::string& file) {
  std::vector<std::string> records;
  size_t at = 0;
  while (at + 12 <= file.size()) {
    uint64_t length = 0;
    uint32_t crc = 0;
    std::memcpy(&length, file.data() + at, 8);
    std::memcpy(&crc, file.data() + at + 8, 4);
    EXPECT_EQ(unmask(crc), crc32c({file.data() + at, 8}));
    at += 12;
    if (length > file.size() - at) {
      ADD_FAILURE() << "a record is cut";
      return records;
    }
    records.push_back(file.substr(at, length));
    at += length;
    std::memcpy(&crc, file.data() + at, 4);
    EXPECT_EQ(unmask(crc), crc32c(records.back()));
    at += 4;
  }
  EXPECT_EQ(at, file.size());
  return records;
}

class TensorBoardTest : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = TensorBoardWriter::open(files_, "/tb");
    ASSERT_TRUE(opened) << opened.error().to_string();
    writer_ = std::move(*opened);
  }
  std::string content() { return *files_.read(writer_->path()); }
  os::FakeFileSystem files_;
  std::unique_ptr<TensorBoardWriter> writer_;
};

TEST_F(TensorBoardTest, NamesItsFileAndStartsWithTheVersion) {
  EXPECT_THAT(
      writer_->path().filename().string(),
      testing::MatchesRegex(R"(events\.out\.tfevents\.[0-9]+\..+\.[0-9]+)"));
  const auto records = records_of(content());
  ASSERT_EQ(records.size(), 1U);
  EXPECT_THAT(
      records[0],
      testing::EndsWith(
          "\x1a\x0d"
          "brain.Event:2"));
}

TEST_F(TensorBoardTest, TwoWritersHaveTwoFiles) {
  auto second = TensorBoardWriter::open(files_, "/tb");
  ASSERT_TRUE(second);
  EXPECT_NE((*second)->path(), writer_->path());
}

TEST_F(TensorBoardTest, EncodesAScalar) {
  ASSERT_TRUE(writer_->scalar("a", 1.5, 300, 2.0));
  ASSERT_TRUE(writer_->flush());
  const auto records = records_of(content());
  ASSERT_EQ(records.size(), 2U);
  using namespace std::string_literals;
  EXPECT_EQ(
      records[1],
      "\x09\0\0\0\0\0\0\0\x40"s  // wall time 2.0
      "\x10\xac\x02"s            // step 300
      "\x2a\x0a\x0a\x08"s        // summary, value
      "\x0a\x01"
      "a\x15\0\0\xc0\x3f"s);  // tag, simple value 1.5
}

TEST_F(TensorBoardTest, GathersAndWritesInBlocks) {
  const size_t before = content().size();
  ASSERT_TRUE(writer_->scalar("a", 1, 1, 1));
  EXPECT_EQ(content().size(), before);
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(writer_->scalar("a", i, i, 1));
  }
  EXPECT_GT(content().size(), before);
  ASSERT_TRUE(writer_->flush());
  EXPECT_EQ(records_of(content()).size(), 10'002U);
}

TEST_F(TensorBoardTest, TheEndFlushes) {
  ASSERT_TRUE(writer_->scalar("a", 1, 1, 1));
  const auto path = writer_->path();
  writer_.reset();
  EXPECT_EQ(records_of(*files_.read(path)).size(), 2U);
}

TEST_F(TensorBoardTest, RecordsStayWholeOverAFullDisk) {
  files_.set_space(10);
  ASSERT_TRUE(writer_->scalar("a", 1, 1, 1));
  auto full = writer_->flush();
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), ErrorCode::kNoSpace);
  files_.set_space(1 << 20);
  ASSERT_TRUE(writer_->scalar("a", 2, 2, 1));
  ASSERT_TRUE(writer_->flush());
  EXPECT_EQ(records_of(content()).size(), 3U);
}

TEST_F(TensorBoardTest, WritesImagesTextAndOddHistograms) {
  EXPECT_TRUE(writer_->image("i", Image{2, 2, 1, {1, 2, 3, 4}}, 1, 1));
  EXPECT_FALSE(writer_->image("i", Image{}, 1, 1));
  EXPECT_TRUE(writer_->text("t", "# words", 1, 1));
  const std::vector<float> odd = {
      std::nanf(""), HUGE_VALF, -HUGE_VALF, 0, -3e38F, 3e38F, 1e-30F};
  EXPECT_TRUE(writer_->histogram("h", odd, 1, 1));
  EXPECT_TRUE(writer_->histogram("h", {}, 2, 1));
  ASSERT_TRUE(writer_->flush());
  EXPECT_EQ(records_of(content()).size(), 5U);
}

}  // namespace
}  // namespace lockstep::record
