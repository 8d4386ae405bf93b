#include "lockstep/launch/mount_link.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

class MountLinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("lockstep-link-" + std::to_string(::getpid()));
    fs::create_directories(folder_ / "work");
    fs::create_directories(folder_ / "cache" / "a");
    fs::create_directories(folder_ / "cache" / "b");
  }
  void TearDown() override { fs::remove_all(folder_); }

  Result<os::Path> link(const os::Path& target, const std::string& name) {
    return link_mount(target, folder_ / "work", name, folder_ / "cache");
  }

  os::Path folder_;
};

TEST_F(MountLinkTest, OurLinksAreReplacedOthersAreNot) {
  const os::Path place = folder_ / "work" / "in" / "data";
  ASSERT_EQ(link(folder_ / "cache" / "a", "in/data/").value(), place);
  EXPECT_EQ(fs::read_symlink(place), folder_ / "cache" / "a");
  ASSERT_TRUE(link(folder_ / "cache" / "b", "in/data"));
  EXPECT_EQ(fs::read_symlink(place), folder_ / "cache" / "b");
  fs::create_symlink(folder_, folder_ / "work" / "own");
  EXPECT_EQ(
      link(folder_ / "cache" / "a", "own").error().code(), ErrorCode::kExists);
  EXPECT_EQ(fs::read_symlink(folder_ / "work" / "own"), folder_);
}

TEST_F(MountLinkTest, FilesOfTheUserAreNeverTouched) {
  std::ofstream(folder_ / "work" / "file") << "mine";
  EXPECT_EQ(
      link(folder_ / "cache" / "a", "file").error().code(), ErrorCode::kExists);
  EXPECT_EQ(os::real_files().read(folder_ / "work" / "file").value(), "mine");
}

TEST_F(MountLinkTest, WhatIsMountedOntoItselfIsThere) {
  fs::create_directories(folder_ / "work" / "data");
  EXPECT_TRUE(link(folder_ / "work" / "data", "data"));
  EXPECT_FALSE(fs::is_symlink(folder_ / "work" / "data"));
}

TEST_F(MountLinkTest, AnAbsoluteNameStandsAsItIs) {
  const os::Path place = folder_ / "elsewhere" / "x";
  EXPECT_EQ(link(folder_ / "cache" / "a", place.string()).value(), place);
  EXPECT_TRUE(fs::is_symlink(place));
}

}  // namespace
}  // namespace lockstep::launch
