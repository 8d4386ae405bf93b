#include "lockstep/record/comparison.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/os/file.h"
#include "lockstep/record/temporary_folder_test.h"
#include "lockstep/wire/event.h"

namespace lockstep::record {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr double kStart = 1'700'000'000;

class ComparisonTest : public testing::Test {
 protected:
  // Two ranks, six steps, a validation and its checkpoint.
  RunDirectory
  make_run(const std::string& name, double accuracy, double gpu_bytes = 0) {
    auto run = *RunDirectory::create(folder_.path() / "runs", name);
    std::ofstream out(run.events());
    const auto event = [&out](double time, int rank, wire::EventBody body) {
      out << wire::to_json({kStart + time, rank, "node", std::move(body)})
          << "\n";
    };
    for (int rank = 0; rank < 2; ++rank) {
      event(
          1,
          rank,
          wire::Init{
              "lockstep-train vit",
              2,
              1.0,
              {{"batch_size", "96"},
               {"batch_memory", "3.1 GiB of 4.0 GiB"},
               {"recompute", "none"}}});
      for (int step = 1; step <= 6; ++step) {
        wire::Iteration one;
        one.step = step;
        one.samples = 96;
        one.compute = one.total = .5;
        event(1 + step * .5, rank, one);
      }
      event(
          3,
          rank,
          wire::Resource{200e6, 0.9, gpu_bytes > 0 ? .8 : 0, gpu_bytes});
      event(6, rank, wire::Exit{});
    }
    event(
        5,
        0,
        wire::Metric{6, 0, {{"val_accuracy", accuracy}, {"val_loss", 1.25}}});
    event(
        5,
        0,
        wire::Checkpoint{
            6, (run.checkpoints() / "best.safetensors").string(), "best", .1});
    return run;
  }
  std::string page(const ComparisonInput& input) {
    const auto written = write_comparison(folder_.path() / "both", input);
    EXPECT_TRUE(written) << written.error().to_string();
    return *os::real_files().read(folder_.path() / "both" / "logbook.md");
  }
  TemporaryFolder folder_;
};

TEST_F(ComparisonTest, PutsRunsSideBySide) {
  ComparisonInput input;
  input.name = "vit-compare";
  input.command = "lockstep run vit-compare.yaml";
  input.runs.push_back(
      {"ddp", make_run("a", .5, 3e9), "done", 61, Money::from_dollars(1.25)});
  input.runs.push_back({"fsdp", make_run("b", .625, 1e9), "done", 122, {}});
  const std::string text = page(input);
  EXPECT_THAT(text, HasSubstr("|  | ddp | fsdp |"));
  EXPECT_THAT(text, HasSubstr("| batch a rank | 96 | 96 |"));
  EXPECT_THAT(text, HasSubstr("| 3.1 GiB of 4.0 GiB |"));
  EXPECT_THAT(text, HasSubstr("0.5 (step 6) | 0.625 (step 6) |"));
  EXPECT_THAT(text, HasSubstr("| training time | 1m 01s | 2m 02s |"));
  EXPECT_THAT(text, HasSubstr("| cost | $1.25 | - |"));
  EXPECT_THAT(text, HasSubstr("| GPU use (mean) | 80% | 80% |"));
  EXPECT_THAT(text, HasSubstr("lockstep run vit-compare.yaml"));
  EXPECT_THAT(text, HasSubstr("tensorboard --logdir "));
  EXPECT_THAT(text, HasSubstr("plots/gpu.svg"));
  EXPECT_THAT(text, HasSubstr("plots/val_accuracy.svg"));
  EXPECT_THAT(
      *os::real_files().read(folder_.path() / "both/plots/val_accuracy.svg"),
      HasSubstr("fsdp"));
  const auto csv =
      *os::real_files().read(folder_.path() / "both" / "comparison.csv");
  EXPECT_THAT(csv, HasSubstr(",ddp,fsdp\n"));
  EXPECT_THAT(
      csv, HasSubstr("best val_accuracy,0.5 (step 6),0.625 (step 6)\n"));
}

TEST_F(ComparisonTest, TellsOfRunsThatFailedOrNeverBegan) {
  ComparisonInput input;
  input.name = "x";
  input.runs.push_back({"good", make_run("a", .5), "done", 5, {}});
  input.runs.push_back({"bad", {}, "failed, exit code 3", 0, {}});
  const std::string text = page(input);
  EXPECT_THAT(text, HasSubstr("of which 1 did not end well"));
  EXPECT_THAT(text, HasSubstr("| state | done | failed, exit code 3 |"));
  EXPECT_THAT(text, HasSubstr("No GPU was used."));
  EXPECT_THAT(text, Not(HasSubstr("plots/gpu.svg")));
  EXPECT_THAT(text, HasSubstr("plots/memory.svg"));
}

}  // namespace
}  // namespace lockstep::record
