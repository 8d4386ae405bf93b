#include "lockstep/train/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <fstream>

#include "lockstep/os/file.h"
#include "lockstep/record/safetensors.h"
#include "lockstep/train/error.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

class CheckpointFile : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "ckpt-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path path() const { return folder_ / "last.safetensors"; }

  static CheckpointState make(double value) {
    return {
        "demo",
        "a: 1\n",
        {{"w",
          at::full({2, 3, 4, 5}, value)
              .contiguous(at::MemoryFormat::ChannelsLast)},
         {"count", at::full({}, 7, at::kLong)}},
        {{"optim.w", at::full({4}, value, at::kBFloat16)}}};
  }

  std::string refusal(const CheckpointState& state) {
    try {
      load_checkpoint(path(), state);
    } catch (const TrainError& failure) {
      EXPECT_EQ(failure.exit_code(), kBadInput);
      return failure.what();
    }
    return "";
  }

  fs::path folder_;
};

TEST_F(CheckpointFile, OtherClassesAreRefused) {
  auto state = make(0);
  save_checkpoint(path(), state, {});
  state.classes = {"mug", "pen\xff"};
  EXPECT_EQ(refusal(state), "");  // a file from before has none
  save_checkpoint(path(), state, {});
  EXPECT_EQ(refusal(state), "");
  state.classes = {"mug", "bike", "pen"};
  EXPECT_THAT(
      refusal(state),
      testing::AllOf(
          testing::HasSubstr(path().string()),
          testing::HasSubstr("is of 2 classes, class 1 being \"pen"),
          testing::HasSubstr("has 3, that one being \"bike\"")));
}

TEST_F(CheckpointFile, BringsBackTheWholeState) {
  auto saved = make(0);
  saved.tensors[0].second.copy_(at::arange(120).view({2, 3, 4, 5}));
  save_checkpoint(path(), saved, {12, 3, 640, .25, 9.5, 2});
  EXPECT_EQ(whole_bytes(saved), 120 * 4 + 8 + 4 * 2);
  auto loaded = make(1);
  const auto progress = load_checkpoint(path(), loaded);
  EXPECT_EQ(progress.step, 12);
  EXPECT_EQ(progress.epoch, 3);
  EXPECT_EQ(progress.samples_in_epoch, 640);
  EXPECT_EQ(progress.best, .25);
  EXPECT_EQ(progress.seconds, 9.5);
  EXPECT_EQ(progress.since_best, 2);
  EXPECT_TRUE(loaded.tensors[0].second.equal(saved.tensors[0].second));
  EXPECT_TRUE(loaded.extra[0].second.equal(saved.extra[0].second));
}

TEST_F(CheckpointFile, SaysWhoseItIs) {
  auto state = make(0);
  save_checkpoint(path(), state, {.step = 1});
  EXPECT_FALSE(is_checkpoint_of(path(), ""));
  state.run = "a";
  save_checkpoint(path(), state, {.step = 1});
  EXPECT_TRUE(is_checkpoint_of(path(), "a"));
  EXPECT_FALSE(is_checkpoint_of(path(), "b"));
}

TEST_F(CheckpointFile, RefusesWhatDoesNotFitAndSaysWhy) {
  save_checkpoint(path(), make(0), {});
  auto other_shape = make(0);
  other_shape.tensors[0].second = at::zeros({2, 2});
  EXPECT_NE(refusal(other_shape).find("'w'"), std::string::npos);
  auto more = make(0);
  more.tensors.emplace_back("new", at::zeros({1}));
  EXPECT_NE(refusal(more).find("lacks tensor 'new'"), std::string::npos);
  auto fewer = make(0);
  fewer.tensors.pop_back();
  EXPECT_NE(refusal(fewer).find("'count'"), std::string::npos);
  auto other_recipe = make(0);
  other_recipe.recipe = "other";
  EXPECT_NE(refusal(other_recipe).find("recipe 'demo'"), std::string::npos);
}

TEST_F(CheckpointFile, NamesTheKeyThatMakesItFit) {
  const auto with = [](const std::string& name) {
    auto state = make(0);
    state.extra.emplace_back(name, at::zeros({1}));
    return state;
  };
  save_checkpoint(path(), make(0), {});
  EXPECT_NE(refusal(with("raw.w")).find("ema=0"), std::string::npos);
  EXPECT_NE(refusal(with("optim.w.a")).find("optim.name="), std::string::npos);
  auto deeper = with("optim.w.a");
  deeper.tensors.emplace_back("w.a", at::zeros({1}));
  EXPECT_EQ(refusal(deeper).find("optim.name="), std::string::npos);
  save_checkpoint(path(), with("raw.w"), {});
  EXPECT_NE(refusal(make(0)).find("set ema="), std::string::npos);
  save_checkpoint(path(), with("optim.w.a"), {});
  EXPECT_NE(refusal(make(0)).find("optim.name="), std::string::npos);
}

TEST_F(CheckpointFile, NamesATruncatedFileAndTouchesNothing) {
  save_checkpoint(path(), make(5), {});
  fs::resize_file(path(), fs::file_size(path()) - 7);
  auto state = make(1);
  EXPECT_NE(refusal(state).find(path().string()), std::string::npos);
  EXPECT_EQ(state.tensors[0].second.sum().item<float>(), 120);
}

TEST_F(CheckpointFile, TheOldOneSurvivesAFailedWrite) {
  save_checkpoint(path(), make(5), {.step = 1});
  // A folder where the temporary file would be written cannot be had.
  const auto elsewhere = folder_ / "gone" / "last.safetensors";
  EXPECT_THROW(save_checkpoint(elsewhere, make(6), {.step = 2}), TrainError);
  auto state = make(0);
  EXPECT_EQ(load_checkpoint(path(), state).step, 1);
}

TEST_F(CheckpointFile, ALinkKeepsItsContentWhenTheFirstIsReplaced) {
  const auto best = folder_ / "best.safetensors";
  save_checkpoint(path(), make(5), {.step = 1});
  link_checkpoint(path(), best);
  save_checkpoint(path(), make(6), {.step = 2});
  auto state = make(0);
  EXPECT_EQ(load_checkpoint(best, state).step, 1);
  link_checkpoint(path(), best);
  EXPECT_EQ(load_checkpoint(best, state).step, 2);
}

// A text of them would need a stack as deep as they are.
TEST_F(CheckpointFile, ClassesThatAreNoNamesAreRefused) {
  auto state = make(0);
  state.classes = {"mug", "pen"};
  save_checkpoint(path(), state, {});
  const auto file = record::SafetensorsFile::open(path());
  ASSERT_TRUE(file);
  record::Metadata metadata = file->metadata();
  metadata["lockstep.classes"] =
      "[\"mug\"," + std::string(200'000, '[') + std::string(200'000, ']') + "]";
  ASSERT_TRUE(
      record::write_safetensors(
          os::real_files(), path(), file->tensors(), metadata));
  EXPECT_THAT(
      refusal(state),
      testing::HasSubstr("class 1 being no name, and the data has 2"));
}

}  // namespace
}  // namespace lockstep::train
