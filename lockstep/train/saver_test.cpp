#include "lockstep/train/saver.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <torch/types.h>
#include <unistd.h>

#include <fstream>

#include "lockstep/collective/factory.h"
#include "lockstep/record/event_log.h"
#include "lockstep/train/checkpoint_reader.h"
#include "lockstep/train/error.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

// Keeps what is written.
class Events : public record::EventWriter {
 public:
  void write(wire::EventBody body) override {
    checkpoints.push_back(std::get<wire::Checkpoint>(body));
  }
  void flush() override {}
  int64_t dropped() const override { return 0; }
  std::vector<wire::Checkpoint> checkpoints;
};

class SaverTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "saver-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }

  CheckpointState state(const at::Tensor& weights) {
    return {"demo", "a: 1\n", {{"w", weights}}, {{"m", at::zeros({2})}}};
  }
  double in_file(const std::string& name) {
    const auto weights = at::zeros({3});
    load_checkpoint(folder_ / name, state(weights));
    return weights[0].item<double>();
  }
  Saver::Options options(const fs::path& folder) {
    return {.folder = folder, .sharded = false, .behind = GetParam()};
  }

  fs::path folder_;
  std::unique_ptr<collective::Communicator> group_ = collective::make_single();
  Events events_;
};

TEST_P(SaverTest, FilesHoldTheStateAsItWasWhenSaved) {
  Saver saver(options(folder_), *group_, events_);
  const auto weights = at::ones({3});
  Progress progress{.step = 10, .best = .5};
  saver.save(state(weights), progress, "best");
  weights.fill_(2);  // training goes on at once
  progress.step = 20;
  saver.save(state(weights), progress, "periodic");
  weights.fill_(3);
  saver.wait();
  EXPECT_EQ(in_file("best.safetensors"), 1);
  EXPECT_EQ(in_file("last.safetensors"), 2);
  ASSERT_EQ(events_.checkpoints.size(), 2U);
  EXPECT_EQ(events_.checkpoints[0].reason, "best");
  EXPECT_EQ(events_.checkpoints[1].step, 20);
  EXPECT_EQ(events_.checkpoints[1].path, saver.last().string());
}

TEST_P(SaverTest, WhatIsSaidOfTheStateIsInTheFile) {
  Saver saver(options(folder_), *group_, events_);
  auto told = state(at::ones({3}));
  told.run = "r1";
  told.classes = {"ant", "bee"};
  told.model = "heads=3";
  saver.save(told, {.step = 1}, "final");
  saver.wait();
  auto metadata = CheckpointReader(folder_ / "last.safetensors").metadata();
  EXPECT_EQ(metadata["lockstep.recipe"], "demo");
  EXPECT_EQ(metadata["lockstep.config"], "a: 1\n");
  EXPECT_EQ(metadata["lockstep.run"], "r1");
  EXPECT_EQ(metadata["lockstep.classes"], R"(["ant","bee"])");
  EXPECT_EQ(metadata["lockstep.model"], "heads=3");
}

TEST_P(SaverTest, WithoutValidationTheLastIsTheBest) {
  Saver saver(options(folder_), *group_, events_);
  saver.save(state(at::full({3}, 4.)), {.step = 1}, "final");
  saver.wait();
  EXPECT_EQ(in_file("best.safetensors"), 4);
  EXPECT_EQ(in_file("last.safetensors"), 4);
}

TEST_P(SaverTest, WhatAKilledWriteLeftIsRemovedOnceItIsOld) {
  const auto name = [](const char* of, int64_t pid) {
    return fmt::format(".{}.safetensors.tmp-{}-3", of, pid);
  };
  const int64_t dead = 999'999'999;  // above every pid_max
  const std::string old = name("best", dead);
  const std::vector<std::string> kept = {
      name("last", dead), name("best", getpid()), "last.safetensors"};
  std::ofstream(folder_ / old).put('x');
  for (const auto& file : kept) {
    std::ofstream(folder_ / file).put('x');
  }
  const auto hour_ago =
      fs::file_time_type::clock::now() - std::chrono::hours(1);
  fs::last_write_time(folder_ / old, hour_ago);
  fs::last_write_time(folder_ / kept[1], hour_ago);
  const Saver saver(options(folder_), *group_, events_);
  EXPECT_FALSE(fs::exists(folder_ / old));
  for (const auto& file : kept) {
    EXPECT_TRUE(fs::exists(folder_ / file)) << file;
  }
}

TEST_P(SaverTest, AFailedWriteIsToldAndLeavesTheOldFile) {
  Saver saver(options(folder_), *group_, events_);
  saver.save(state(at::ones({3})), {.step = 1}, "periodic");
  saver.wait();
  Saver lost(options(folder_ / "gone"), *group_, events_);
  EXPECT_THROW(
      {
        lost.save(state(at::ones({3})), {.step = 2}, "periodic");
        lost.wait();
      },
      TrainError);
  EXPECT_EQ(events_.checkpoints.size(), 1U);
  EXPECT_EQ(in_file("last.safetensors"), 1);
}

INSTANTIATE_TEST_SUITE_P(
    Modes,
    SaverTest,
    testing::Bool(),
    [](const auto& info) { return info.param ? "Behind" : "Waiting"; });

}  // namespace
}  // namespace lockstep::train
