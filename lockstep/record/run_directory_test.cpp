#include "lockstep/record/run_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/record/temporary_folder_test.h"

namespace lockstep::record {
namespace {

using testing::HasSubstr;

TEST(RunDirectory, CreateMakesFoldersUnderAUniqueId) {
  const TemporaryFolder folder;
  auto first = RunDirectory::create(folder.path() / "runs", "dcgan");
  auto second = RunDirectory::create(folder.path() / "runs", "dcgan");
  ASSERT_TRUE(first) << first.error().to_string();
  ASSERT_TRUE(second);
  EXPECT_NE(first->id(), second->id());
  EXPECT_THAT(first->id(), testing::StartsWith("dcgan-"));
  for (const char* name :
       {"ranks", "tensorboard", "checkpoints", "samples", "plots"}) {
    EXPECT_TRUE(std::filesystem::is_directory(first->path() / name)) << name;
  }
  EXPECT_EQ(first->rank_log(3), first->path() / "ranks" / "3.log");
  EXPECT_EQ(first->rank_events(3), first->path() / "ranks" / "3.jsonl");
}

TEST(RunDirectory, OpenAddsWhatIsAbsent) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "out";
  std::vector<std::jthread> ranks;
  for (int i = 0; i < 4; ++i) {
    ranks.emplace_back([&path] { EXPECT_TRUE(RunDirectory::open(path)); });
  }
  ranks.clear();
  EXPECT_TRUE(std::filesystem::is_directory(path / "checkpoints"));
  auto slash = RunDirectory::open(path / "");
  ASSERT_TRUE(slash);
  EXPECT_EQ(slash->id(), "out");
}

TEST(RunDirectory, ANewRunAppendsToNothingOfTheOld) {
  const TemporaryFolder folder;
  const auto run = RunDirectory::open(folder.path() / "out");
  ASSERT_TRUE(run);
  const std::vector<os::Path> kept = {
      run->job(),
      run->rank_log(0),
      run->checkpoints() / "last.safetensors",
      run->samples() / "fake-000001.png",
      run->tensorboard() / "notes.txt"};
  const std::vector<os::Path> gone = {
      run->events(),
      run->metrics(),
      run->timing(),
      run->rank_events(0),
      run->rank_events(7),
      run->tensorboard() / "events.out.tfevents.1.host.2"};
  for (const auto& list : {kept, gone}) {
    for (const auto& path : list) {
      std::ofstream(path) << "x";
    }
  }
  EXPECT_TRUE(run->is_used());
  ASSERT_TRUE(run->start_anew());
  EXPECT_FALSE(run->is_used());
  for (const auto& path : kept) {
    EXPECT_TRUE(std::filesystem::exists(path)) << path;
  }
  for (const auto& path : gone) {
    EXPECT_FALSE(std::filesystem::exists(path)) << path;
  }
  EXPECT_TRUE(run->start_anew());
}

TEST(RunDirectory, OldCheckpointsAreKeptUnderAnotherName) {
  const TemporaryFolder folder;
  const auto last = folder.path() / "last.safetensors";
  const auto best = folder.path() / "best.safetensors";
  const auto previous = folder.path() / "previous-last.safetensors";
  const auto content = [](const os::Path& path) {
    return os::real_files().read(path).value_or("absent");
  };
  EXPECT_TRUE(set_checkpoints_aside(folder.path()));
  std::ofstream(last) << "first";
  std::ofstream(best) << "best";
  ASSERT_TRUE(set_checkpoints_aside(folder.path()));
  EXPECT_FALSE(std::filesystem::exists(last));
  EXPECT_FALSE(std::filesystem::exists(best));
  EXPECT_EQ(content(previous), "first");
  // A run that wrote none takes nobody's away.
  ASSERT_TRUE(set_checkpoints_aside(folder.path()));
  EXPECT_EQ(content(previous), "first");
  std::filesystem::create_directory(last);
  std::ofstream(last / "shard") << "second";
  ASSERT_TRUE(set_checkpoints_aside(folder.path()));
  EXPECT_EQ(content(previous / "shard"), "second");
  std::ofstream(last) << "third";
  ASSERT_TRUE(set_checkpoints_aside(folder.path()));
  EXPECT_EQ(content(previous), "third");
  EXPECT_EQ(content(folder.path() / "previous-best.safetensors"), "best");
}

TEST(RunDirectory, AnUnusablePlaceIsNamedWithAWayOut) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "file";
  std::ofstream(file) << "x";
  for (const auto& result :
       {RunDirectory::create(file / "runs", "x"), RunDirectory::open(file)}) {
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().to_string(), HasSubstr(file.string()));
    EXPECT_THAT(result.error().to_string(), HasSubstr("--runs-dir"));
  }
}

TEST(RunDirectory, OneThatCannotBeMadeWholeIsNotLeftBehind) {
  const TemporaryFolder folder;
  const auto sample = RunDirectory::create(folder.path() / "sample", "x");
  ASSERT_TRUE(sample);
  // So deep that ranks/ still has a path and tensorboard/ has not.
  constexpr size_t kLongest = 4095;
  const size_t wanted = kLongest - sample->id().size() - 1 - 8;
  os::Path root = folder.path();
  while (root.string().size() + 1 < wanted) {
    const size_t left = wanted - root.string().size() - 1;
    root /= std::string(left > 202 ? 200 : left, 'd');
  }
  const auto run = RunDirectory::create(root, "x");
  ASSERT_FALSE(run);
  EXPECT_THAT(run.error().to_string(), HasSubstr("tensorboard"));
  const auto runs = list_runs(root);
  ASSERT_TRUE(runs);
  EXPECT_TRUE(runs->empty());
  EXPECT_TRUE(std::filesystem::is_empty(root));
}

TEST(RunDirectory, ReadersMakeNothing) {
  const TemporaryFolder folder;
  auto absent = RunDirectory::existing(folder.path() / "absent");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "absent"));
  EXPECT_FALSE(RunDirectory::existing(folder.path()));
}

TEST(RunDirectory, ListHasTheNewestFirst) {
  const TemporaryFolder folder;
  EXPECT_TRUE(list_runs(folder.path() / "absent")->empty());
  auto old = RunDirectory::create(folder.path(), "z");
  // File times move with the kernel's coarse clock.
  timespec before{};
  timespec after{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &before);
  do {
    ::clock_gettime(CLOCK_REALTIME_COARSE, &after);
  } while (before.tv_nsec == after.tv_nsec);
  auto young = RunDirectory::create(folder.path(), "a");
  std::filesystem::create_directory(folder.path() / "other");
  const auto now = std::filesystem::file_time_type::clock::now();
  std::filesystem::last_write_time(
      old->path() / "ranks", now - std::chrono::hours(1));
  std::filesystem::last_write_time(young->path() / "ranks", now);
  auto runs = list_runs(folder.path());
  ASSERT_TRUE(runs);
  ASSERT_EQ(runs->size(), 2U);
  EXPECT_EQ((*runs)[0].id(), young->id());
  EXPECT_EQ((*runs)[1].id(), old->id());
}

}  // namespace
}  // namespace lockstep::record
