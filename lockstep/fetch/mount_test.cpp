#include "lockstep/fetch/mount.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "lockstep/fetch/http.h"

namespace lockstep::fetch {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class MountTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() /
              ("lockstep-mount-" + std::to_string(::getpid()));
    fs::create_directories(folder_ / "in");
  }
  void TearDown() override { fs::remove_all(folder_); }

  Result<os::Path> resolve(const std::string& source) {
    return resolve_mount({source, folder_ / "cache", nullptr});
  }
  std::string error(const std::string& source) {
    const auto path = resolve(source);
    return path ? "" : path.error().to_string();
  }
  void write(const os::Path& path, const std::string& text) {
    std::ofstream(path) << text;
  }
  std::string read(const os::Path& path) {
    return os::real_files().read(path).value_or("(absent)");
  }
  void pack() {
    const std::string command = "tar -C '" + (folder_ / "in").string() +
                                "' -czf '" + (folder_ / "a.tgz").string() +
                                "' .";
    ASSERT_EQ(std::system(command.c_str()), 0);
  }

  os::Path folder_;
};

TEST_F(MountTest, LocalFoldersAndFilesStandAsTheyAre) {
  write(folder_ / "in" / "x", "1");
  EXPECT_EQ(*resolve((folder_ / "in").string()), folder_ / "in");
  EXPECT_EQ(*resolve((folder_ / "in").string() + "/"), folder_ / "in");
  EXPECT_EQ(*resolve("file://" + (folder_ / "in").string()), folder_ / "in");
  EXPECT_EQ(*resolve((folder_ / "in" / "x").string()), folder_ / "in" / "x");
  EXPECT_FALSE(fs::exists(folder_ / "cache"));
}

TEST_F(MountTest, AnArchiveIsUnpackedOnceForEachContent) {
  write(folder_ / "in" / "x", "one");
  pack();
  const auto first = resolve((folder_ / "a.tgz").string());
  ASSERT_TRUE(first) << first.error().to_string();
  EXPECT_EQ(read(*first / "x"), "one");
  EXPECT_EQ(*resolve((folder_ / "a.tgz").string()), *first);
  write(folder_ / "in" / "x", "another");
  pack();
  const auto second = resolve((folder_ / "a.tgz").string());
  ASSERT_TRUE(second) << second.error().to_string();
  EXPECT_EQ(read(*second / "x"), "another");
  // Whoever uses the older one still can.
  EXPECT_EQ(read(*first / "x"), "one");
}

TEST_F(MountTest, ADamagedArchiveLeavesNothingThatLooksWhole) {
  write(folder_ / "a.tar", "not a tar archive");
  EXPECT_THAT(error((folder_ / "a.tar").string()), HasSubstr("a.tar"));
  EXPECT_THAT(error((folder_ / "a.tar").string()), HasSubstr("a.tar"));
}

TEST_F(MountTest, ATextThatIsNamedAsAnArchiveIsTold) {
  const os::Path file = folder_ / "page.tar.gz";
  write(file, std::string(2000, 'x'));
  const auto path = resolve(file.string());
  ASSERT_FALSE(path);
  EXPECT_EQ(path.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(
      path.error().to_string(),
      testing::StartsWith(file.string() + " cannot be unpacked"));
}

TEST(Address, IsShownWithoutItsPassword) {
  EXPECT_EQ(without_password("https://me:pw@host/x"), "https://me:***@host/x");
  EXPECT_EQ(without_password("http://me:p@w@host"), "http://me:***@host");
  for (const char* same :
       {"https://host/x:y@z", "https://me@host:80/", "http://h:80", "a:b@c"}) {
    EXPECT_EQ(without_password(same), same);
  }
}

TEST_F(MountTest, WhatIsNotThereIsNamed) {
  const auto absent = resolve((folder_ / "none").string());
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(absent.error().to_string(), HasSubstr("none"));
  EXPECT_THAT(error(""), HasSubstr("no source"));
  EXPECT_THAT(error("ftp://a/b"), HasSubstr("accepted: a path, https://"));
  EXPECT_THAT(error("https://a/b.zip"), HasSubstr(".tar.gz"));
}

TEST(Scheme, IsWhatStandsBeforeTheSlashes) {
  EXPECT_EQ(scheme_of("https://a/b"), "https");
  EXPECT_EQ(scheme_of("s3://bucket"), "s3");
  EXPECT_EQ(scheme_of("/a/b"), "");
  EXPECT_EQ(scheme_of("a b://c"), "");
}

}  // namespace
}  // namespace lockstep::fetch
