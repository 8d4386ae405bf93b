#include "lockstep/fetch/part_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/part_plan.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

class PartWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name =
        (std::filesystem::temp_directory_path() / "lockstep-XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    path_ = folder_ / "file";
    file_ = os::Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT, 0600));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::filesystem::path folder_;
  os::Path path_;
  os::Descriptor file_;
  std::mutex turn_;
};

TEST_F(PartWriterTest, PiecesStandAtTheirPlace) {
  std::string bytes(600000, ' ');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>('a' + i % 23);
  }
  PartWriter writer(turn_, file_.get(), path_, 5, bytes.size());
  EXPECT_TRUE(feed(writer, "spoilt"));
  writer.rewind();
  EXPECT_TRUE(feed(writer, bytes.substr(0, 300001)));
  EXPECT_TRUE(feed(writer, bytes.substr(300001)));
  ASSERT_TRUE(writer.flush());
  EXPECT_EQ(writer.written(), bytes.size());
  EXPECT_EQ(writer.crc(), crc32c(bytes));
  EXPECT_EQ(content(), std::string(5, '\0') + bytes);
}

TEST_F(PartWriterTest, NoMoreThanThePartHas) {
  PartWriter writer(turn_, file_.get(), path_, 0, 3);
  EXPECT_FALSE(feed(writer, "four"));
  ASSERT_TRUE(writer.failed());
  EXPECT_EQ(writer.failed()->code(), ErrorCode::kUnavailable);
}

TEST_F(PartWriterTest, ADiskThatRefuses) {
  const os::Descriptor full(::open("/dev/full", O_WRONLY | O_CLOEXEC));
  PartWriter writer(turn_, full.get(), path_, 0, 1 << 20);
  EXPECT_FALSE(feed(writer, std::string(1 << 20, 'x')));
  ASSERT_TRUE(writer.failed());
  EXPECT_NE(writer.failed()->to_string().find(path_), std::string::npos);
}

TEST(PartPlan, TheLastIsShorter) {
  const PartPlan plan{25, 10};
  EXPECT_EQ(plan.count(), 3U);
  EXPECT_EQ(plan.offset_of(2), 20U);
  EXPECT_EQ(plan.size_of(1), 10U);
  EXPECT_EQ(plan.size_of(2), 5U);
  EXPECT_EQ((PartPlan{20, 10}.count()), 2U);
  EXPECT_EQ((PartPlan{0, 10}.count()), 0U);
}

}  // namespace
}  // namespace lockstep::fetch
