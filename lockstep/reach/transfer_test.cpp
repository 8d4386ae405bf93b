#include "lockstep/reach/transfer.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "lockstep/reach/content.h"
#include "lockstep/reach/far_files.h"
#include "lockstep/reach/message.h"
#include "lockstep/reach/near_and_far_test.h"
#include "lockstep/reach/prune.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

TEST(Content, HashesAndPacks) {
  EXPECT_EQ(
      sha256_of("abc"),
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::string text(300000, 'x');
  EXPECT_LT(compress(text).size(), 1000U);
  EXPECT_EQ(decompress(compress(text), text.size()).value(), text);
  EXPECT_EQ(decompress(compress(""), 0).value(), "");
  EXPECT_FALSE(decompress(compress(text), text.size() - 1));
  EXPECT_FALSE(decompress("garbage", 7));
}

TEST(Content, NamesThatLeadOutAreRefused) {
  for (const char* name : {"../x", "/etc/passwd", "a/../../x", "", "a//b/.."}) {
    EXPECT_FALSE(inside("/far", name)) << name;
  }
  EXPECT_EQ(inside("/far", "a/b").value(), "/far/a/b");
}

TEST_F(NearAndFar, WhatNobodyUsesGoes) {
  const os::Path folder = folder_ / "bin";
  for (const char* name : {"old", "new", "used"}) {
    write(folder / name / "lockstep", "x");
  }
  const auto long_ago = fs::file_time_type::clock::now() - 2 * kUnused;
  fs::last_write_time(folder / "old", long_ago);
  fs::last_write_time(folder / "used", long_ago);
  mark_used(folder / "used");
  prune(folder);
  prune(folder_ / "not there");
  EXPECT_FALSE(fs::exists(folder / "old"));
  EXPECT_TRUE(fs::exists(folder / "new"));
  EXPECT_TRUE(fs::exists(folder / "used"));
}

class Transfers : public NearAndFar {
 protected:
  Transfers() : work_(folder_ / "work") { fs::create_directories(work_); }

  Sent sync(Session& session, const std::vector<os::Path>& leave = {}) {
    Sent sent;
    auto path = sync_folder(session, work_, &sent, leave);
    EXPECT_TRUE(path) << path.error().to_string();
    if (path) {
      there_ = *path;
    }
    return sent;
  }

  os::Path work_;
  os::Path there_;
};

TEST_F(Transfers, OnlyWhatChangedTravels) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  write(work_ / "train.py", "print(1)");
  write(work_ / "deep/er/data.bin", std::string(3 << 20, 'd'));
  write(work_ / "same.txt", "twice");
  write(work_ / "deep/same.txt", "twice");
  write(work_ / "empty.txt", "");
  ::chmod((work_ / "train.py").c_str(), 0755);
  fs::create_symlink("train.py", work_ / "link.py");
  fs::create_directories(work_ / "hollow");

  Sent sent = sync(*far);
  EXPECT_EQ(sent.files, 5U);
  EXPECT_EQ(read(there_ / "train.py"), "print(1)");
  EXPECT_EQ(read(there_ / "deep/er/data.bin").size(), 3U << 20);
  EXPECT_EQ(read(there_ / "deep/same.txt"), "twice");
  EXPECT_TRUE(fs::is_symlink(there_ / "link.py"));
  EXPECT_TRUE(fs::is_directory(there_ / "hollow"));
  EXPECT_EQ(::access((there_ / "train.py").c_str(), X_OK), 0);
  EXPECT_EQ(
      fs::last_write_time(there_ / "train.py"),
      fs::last_write_time(work_ / "train.py"));

  EXPECT_EQ(sync(*far).files, 0U);

  write(work_ / "train.py", "print(2)");
  fs::remove(work_ / "same.txt");
  fs::remove_all(work_ / "deep/er");
  // What a program made there stays.
  write(there_ / "result.csv", "1,2");
  sent = sync(*far);
  EXPECT_EQ(sent.files, 1U);
  EXPECT_EQ(sent.removed, 3U);  // two files and a folder
  EXPECT_EQ(read(there_ / "train.py"), "print(2)");
  EXPECT_FALSE(fs::exists(there_ / "same.txt"));
  EXPECT_FALSE(fs::exists(there_ / "deep/er"));
  EXPECT_EQ(read(there_ / "result.csv"), "1,2");

  // What a program changed there is put right.
  write(there_ / "train.py", "oops");
  EXPECT_EQ(sync(*far).files, 1U);
  EXPECT_EQ(read(there_ / "train.py"), "print(2)");
}

// Our own cache may lie below the folder (a home, say), and changes meanwhile.
TEST_F(Transfers, OurOwnCacheStaysBehind) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  write(folder_ / "near/packed/thing", "not the user's");
  write(folder_ / "mine.txt", "the user's");
  Sent sent;
  const auto path = sync_folder(*far, folder_, &sent, {home("a")});
  ASSERT_TRUE(path) << path.error().to_string();
  EXPECT_EQ(read(*path / "mine.txt"), "the user's");
  EXPECT_FALSE(fs::exists(*path / "near"));
}

TEST_F(Transfers, AFileThatIsOpenThereKeepsItsContent) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  write(work_ / "x", "old");
  sync(*far);
  std::FILE* open = std::fopen((there_ / "x").c_str(), "r");
  ASSERT_NE(open, nullptr);
  write(work_ / "x", "new!");
  sync(*far);
  char text[8] = {};
  EXPECT_EQ(std::fread(text, 1, sizeof(text), open), 3U);
  std::fclose(open);
  EXPECT_STREQ(text, "old");
  EXPECT_EQ(read(there_ / "x"), "new!");
}

TEST_F(Transfers, FilesAndFoldersMayChangePlaces) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  write(work_ / "a", "file");
  write(work_ / "b/x", "below");
  sync(*far);
  fs::remove_all(work_);
  write(work_ / "a/x", "below");
  write(work_ / "b", "file");
  sync(*far);
  EXPECT_EQ(read(there_ / "a/x"), "below");
  EXPECT_EQ(read(there_ / "b"), "file");
}

TEST_F(Transfers, IgnoredFilesStayBehind) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  write(work_ / ".lockstepignore", "*.tmp\n/data/\n!keep.tmp\n");
  write(work_ / "a.tmp", "x");
  write(work_ / "keep.tmp", "x");
  write(work_ / "data/big", "x");
  write(work_ / "src/data/small", "x");
  write(work_ / ".git/HEAD", "x");
  write(work_ / "runs/one/log", "x");
  write(work_ / "src/.lockstepignore", "/local\n");
  write(work_ / "src/local", "x");
  sync(*far, {work_ / "runs"});
  EXPECT_FALSE(fs::exists(there_ / "a.tmp"));
  EXPECT_TRUE(fs::exists(there_ / "keep.tmp"));
  EXPECT_FALSE(fs::exists(there_ / "data"));
  EXPECT_TRUE(fs::exists(there_ / "src/data/small"));
  EXPECT_FALSE(fs::exists(there_ / ".git"));
  EXPECT_FALSE(fs::exists(there_ / "runs"));
  EXPECT_FALSE(fs::exists(there_ / "src/local"));
}

TEST_F(Transfers, TwoSyncsAtOnceBothWork) {
  const auto one = session("a");
  const auto two = session("a");
  ASSERT_TRUE(one && two);
  for (int i = 0; i < 50; ++i) {
    write(work_ / fmt::format("f{}", i), fmt::format("content {}", i));
  }
  Result<os::Path> first = os::Path();
  std::thread other([&] { first = sync_folder(*one, work_); });
  const auto second = sync_folder(*two, work_);
  other.join();
  ASSERT_TRUE(first) << first.error().to_string();
  ASSERT_TRUE(second) << second.error().to_string();
  EXPECT_EQ(read(*second / "f49"), "content 49");
}

TEST_F(Transfers, SetUpRunsOncePerContent) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  write(work_ / "requirements.txt", "one");
  sync(*far);
  const std::string command = "echo ran; echo x >>marks; pwd";
  const auto set_up = [&](const std::string& text) {
    std::string log;
    const auto done = run_setup(
        *far, there_, text, log, os::Deadline::after(std::chrono::seconds(60)));
    EXPECT_TRUE(done) << done.error().to_string();
    return log;
  };
  EXPECT_THAT(set_up(command), HasSubstr("ran\n" + there_.string()));
  EXPECT_EQ(set_up(command), "");
  EXPECT_EQ(read(there_ / "marks"), "x\n");
  write(work_ / "requirements.txt", "two");
  sync(*far);
  EXPECT_THAT(set_up(command), HasSubstr("ran"));
  EXPECT_THAT(set_up(command + "; true"), HasSubstr("ran"));
  EXPECT_EQ(read(there_ / "marks"), "x\nx\nx\n");
}

TEST_F(Transfers, ASetUpThatFailsIsToldAndRunsAgain) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  sync(*far);
  std::string log;
  const auto soon = os::Deadline::after(std::chrono::seconds(60));
  for (int i = 0; i < 2; ++i) {
    const auto failed =
        run_setup(*far, there_, "echo no pip here; exit 7", log, soon);
    ASSERT_FALSE(failed);
    EXPECT_THAT(
        failed.error().to_string(),
        HasSubstr("a: setup failed: exit code 7: no pip here"));
  }
  const auto late = run_setup(
      *far,
      there_,
      "exec sleep 600",
      log,
      os::Deadline::after(std::chrono::milliseconds(1)));
  ASSERT_FALSE(late);
  EXPECT_THAT(late.error().to_string(), HasSubstr("not done after 1 s"));
}

TEST_F(Transfers, AProgramTravelsWithItsLibrariesOnce) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  // A copy whose path the far side does not have after it is removed.
  const os::Path program = folder_ / "near-only" / "prog";
  fs::create_directories(program.parent_path());
  fs::copy_file(fs::read_symlink("/proc/self/exe"), program);
  auto set = program_set(program, folder_ / "cache");
  ASSERT_TRUE(set) << set.error().to_string();
  EXPECT_EQ(set->files.front().name, "bin/prog");
  // Under another name only here: it must travel.
  const os::Path moved = folder_ / "moved";
  fs::rename(program, moved);
  set->files.front().source = moved;
  write(program, "another content");
  Sent sent;
  const auto path = send_program(*far, *set, &sent);
  ASSERT_TRUE(path) << path.error().to_string();
  EXPECT_EQ(::access(path->c_str(), X_OK), 0);
  const int status =
      std::system((path->string() + " --gtest_list_tests >/dev/null").c_str());
  EXPECT_EQ(status, 0);
  Sent again;
  EXPECT_EQ(send_program(*far, *set, &again).value(), *path);
  EXPECT_EQ(again.files, 0U);
}

// From here to a, and from a to b, without this machine.
TEST_F(Transfers, ANodePassesOnWhatItWasSent) {
  const auto first = session("a");
  ASSERT_TRUE(first);
  write(work_ / "train.py", "print(1)");
  sync(*first);
  const os::Path data = sync_file(*first, work_ / "train.py").value();
  const os::Path program = folder_ / "near-only" / "prog";
  fs::create_directories(program.parent_path());
  fs::copy_file(fs::read_symlink("/proc/self/exe"), program);
  const auto set = program_set(program, folder_ / "cache");
  ASSERT_TRUE(set) << set.error().to_string();
  const os::Path placed = send_program(*first, *set).value();
  write(there_ / "made.txt", "by a rank");

  const auto second = session("b");
  ASSERT_TRUE(second);
  ::setenv("LOCKSTEP_HOME", home("a").c_str(), 1);
  EXPECT_EQ(placed_folder_of(data), data.parent_path());
  EXPECT_EQ(placed_folder_of("/etc/passwd"), os::Path());
  const auto passed = pass_on_folder(*second, there_);
  ASSERT_TRUE(passed) << passed.error().to_string();
  EXPECT_EQ(*passed, home("b") / "workdirs" / there_.filename());
  EXPECT_EQ(read(*passed / "train.py"), "print(1)");
  EXPECT_EQ(read(*passed / "made.txt"), "by a rank");
  const auto known = placed_set(placed);
  ASSERT_TRUE(known) << known.error().to_string();
  EXPECT_EQ(known->id, set->id);
  const auto sent = send_program(*second, *known);
  ASSERT_TRUE(sent) << sent.error().to_string();
  EXPECT_EQ(
      sent->lexically_relative(home("b")),
      placed.lexically_relative(home("a")));
  const int status =
      std::system((sent->string() + " --gtest_list_tests >/dev/null").c_str());
  EXPECT_EQ(status, 0);
  // What nobody sent stays where it is.
  EXPECT_FALSE(pass_on_folder(*second, work_));
  EXPECT_FALSE(pass_on_folder(*second, home("a") / "workdirs"));
  EXPECT_FALSE(placed_set(program));
}

TEST_F(Transfers, AFileThatChangesWhileItIsSentIsRefused) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  const auto soon = os::Deadline::after(std::chrono::seconds(60));
  const std::string text = "content";
  const auto put = [&](const std::string& hash, uint64_t offset) {
    return far->call(
        "put",
        {{"hash", hash},
         {"size", text.size()},
         {"offset", offset},
         {"raw", text.size()},
         {"data", to_bytes(compress(text))}},
        soon);
  };
  EXPECT_TRUE(put(sha256_of(text), 0));
  const auto changed = put(sha256_of("another"), 0);
  ASSERT_FALSE(changed);
  EXPECT_EQ(changed.error().code(), ErrorCode::kAborted);
  EXPECT_TRUE(changed.error().retry());
  EXPECT_FALSE(put(sha256_of(text), 3));
  EXPECT_FALSE(put("../../etc/passwd", 0));
}

TEST_F(Transfers, ReadsFilesInPieces) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  write(folder_ / "log", "0123456789");
  const auto soon = os::Deadline::after(std::chrono::seconds(60));
  const json answer = far->call(
                             "read",
                             {{"path", (folder_ / "log").string()},
                              {"offset", 4},
                              {"limit", 3}},
                             soon)
                          .value();
  EXPECT_EQ(bytes_field(answer, "data").value(), "456");
  EXPECT_EQ(answer["size"], 10);
  EXPECT_FALSE(far->call(
      "read", {{"path", "/nowhere"}, {"offset", 0}, {"limit", 3}}, soon));
}

}  // namespace
}  // namespace lockstep::reach
