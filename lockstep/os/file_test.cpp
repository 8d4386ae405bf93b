#include "lockstep/os/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "lockstep/os/unfinished.h"

namespace lockstep::os {
namespace {

// A folder of its own for each test, gone afterwards.
class RealFiles : public ::testing::Test {
 protected:
  RealFiles() {
    std::string name = ::testing::TempDir() + "lockstep-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~RealFiles() override { std::filesystem::remove_all(folder_); }
  Path folder_;
  FileSystem& files_ = real_files();
};

TEST_F(RealFiles, ReplacesAFileWhole) {
  Path path = folder_ / "a.txt";
  ASSERT_TRUE(files_.write_atomic(path, "one"));
  EXPECT_EQ(files_.read(path).value(), "one");
  std::string_view parts[] = {"tw", "", "o"};
  ASSERT_TRUE(files_.write_atomic(path, parts));
  EXPECT_EQ(files_.read(path).value(), "two");
  EXPECT_EQ(files_.size(path).value().count, 3U);
  EXPECT_EQ(files_.list(folder_).value(), std::vector<std::string>{"a.txt"});
}

TEST_F(RealFiles, ErrorsNameThePath) {
  Path path = folder_ / "no/such/file";
  for (const Error& error :
       {files_.read(path).error(),
        files_.write_atomic(path, "x").error(),
        files_.open_append(path).error(),
        files_.size(path).error(),
        files_.list(path).error(),
        MappedFile::open(path).error()}) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound) << error.to_string();
    EXPECT_NE(error.message().find(path.string()), std::string::npos);
  }
}

// A limit on file size fails a write in the middle, as a full disk does.
TEST_F(RealFiles, FailedReplacementLeavesTheOldFileAndNoOther) {
  Path path = folder_ / "kept.txt";
  ASSERT_TRUE(files_.write_atomic(path, "old"));
  ::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 100;
  ::setrlimit(RLIMIT_FSIZE, &small);
  auto written = files_.write_atomic(path, std::string(1000, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, SIG_DFL);
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().message().find("kept.txt"), std::string::npos);
  EXPECT_EQ(files_.read(path).value(), "old");
  EXPECT_EQ(files_.list(folder_).value(), std::vector<std::string>{"kept.txt"});
}

TEST_F(RealFiles, FailedRenameRemovesTheTemporaryFile) {
  Path path = folder_ / "folder";
  ASSERT_TRUE(files_.make_directories(path / "inside"));
  EXPECT_FALSE(files_.write_atomic(path, "x"));
  EXPECT_EQ(files_.list(folder_).value(), std::vector<std::string>{"folder"});
}

TEST_F(RealFiles, WhatAKilledWriterLeftIsRemovedAndNothingElse) {
  const Path kept = folder_ / ".a.json.tmp-1234-0";
  for (const Path& path :
       {folder_ / ".a.json.tmp-123-0", folder_ / ".b.tmp-123-7", kept}) {
    ASSERT_TRUE(files_.write_atomic(path, "x"));
  }
  ASSERT_TRUE(files_.write_atomic(folder_ / "a.tmp-123-0", "x"));
  remove_unfinished(folder_, 123);
  EXPECT_EQ(
      files_.list(folder_).value(),
      (std::vector<std::string>{".a.json.tmp-1234-0", "a.tmp-123-0"}));
  remove_unfinished(folder_ / "absent", 123);
}

TEST_F(RealFiles, AppendsAndRemoves) {
  Path path = folder_ / "log";
  auto first = files_.open_append(path).value();
  auto second = files_.open_append(path).value();
  ASSERT_TRUE(first->append("a\n"));
  ASSERT_TRUE(second->append("b\n"));
  ASSERT_TRUE(first->append("c\n"));
  ASSERT_TRUE(first->sync());
  EXPECT_EQ(files_.read(path).value(), "a\nb\nc\n");
  EXPECT_TRUE(files_.exists(path));
  EXPECT_TRUE(files_.remove(path));
  EXPECT_TRUE(files_.remove(path)) << "absent is fine";
  EXPECT_FALSE(files_.exists(path));
}

TEST_F(RealFiles, WritesSecretsForTheOwnerOnly) {
  Path path = folder_ / "key";
  ASSERT_TRUE(write_private(path, "secret"));
  struct stat facts{};
  ASSERT_EQ(::stat(path.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  EXPECT_EQ(files_.read(path).value(), "secret");
}

TEST_F(RealFiles, KnowsTheSpaceAlsoForFoldersToBe) {
  uint64_t here = files_.free_space(folder_).value().count;
  EXPECT_GT(here, 0U);
  EXPECT_GT(files_.free_space(folder_ / "x/y").value().count, 0U);
}

TEST_F(RealFiles, ReadsFilesThatHideTheirSize) {
  EXPECT_FALSE(files_.read("/proc/self/status").value().empty());
}

TEST_F(RealFiles, MapsAFile) {
  Path path = folder_ / "data";
  ASSERT_TRUE(files_.write_atomic(path, "bytes"));
  auto mapped = MappedFile::open(path).value();
  MappedFile moved = std::move(mapped);
  ASSERT_EQ(moved.bytes().size(), 5U);
  EXPECT_EQ(static_cast<char>(moved.bytes()[4]), 's');
  // The mapping keeps the old file when a new one takes its name.
  ASSERT_TRUE(files_.write_atomic(path, "other"));
  EXPECT_EQ(static_cast<char>(moved.bytes()[0]), 'b');
  ASSERT_TRUE(files_.write_atomic(path, ""));
  EXPECT_TRUE(MappedFile::open(path).value().bytes().empty());
  EXPECT_EQ(MappedFile::open(folder_).error().code(), ErrorCode::kInvalidInput);
}

TEST(FakeFiles, BehaveLikeFiles) {
  FakeFileSystem files;
  ASSERT_TRUE(files.make_directories("/runs/a/ranks"));
  EXPECT_TRUE(files.exists("/runs/a"));
  ASSERT_TRUE(files.write_atomic("/runs/a/b.txt", "x"));
  auto appender = files.open_append("/runs/a/c.log").value();
  ASSERT_TRUE(appender->append("1"));
  ASSERT_TRUE(appender->append("2"));
  EXPECT_EQ(files.read("/runs/a/c.log").value(), "12");
  EXPECT_EQ(files.size("/runs/a/c.log").value().count, 2U);
  EXPECT_EQ(
      files.list("/runs/a").value(),
      (std::vector<std::string>{"b.txt", "c.log", "ranks"}));
  EXPECT_EQ(files.read("/nothing").error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(files.list("/nothing").error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(files.remove("/runs/a/b.txt"));
  EXPECT_FALSE(files.exists("/runs/a/b.txt"));
}

TEST(FakeFiles, RunOutOfSpace) {
  FakeFileSystem files;
  ASSERT_TRUE(files.write_atomic("/a", "old"));
  files.set_space(5);
  EXPECT_EQ(
      files.write_atomic("/a", "longer").error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(files.read("/a").value(), "old");
  auto appender = files.open_append("/log").value();
  EXPECT_TRUE(appender->append("1234"));
  EXPECT_EQ(appender->append("56").error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(files.read("/log").value(), "12345");
  ASSERT_TRUE(files.remove("/log"));
  EXPECT_EQ(files.free_space("/").value().count, 5U);
}

}  // namespace
}  // namespace lockstep::os
