#include "lockstep/record/logbook.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/os/file.h"
#include "lockstep/record/logbook_plots.h"
#include "lockstep/record/temporary_folder_test.h"

namespace lockstep::record {
namespace {

using testing::HasSubstr;
using testing::Not;
using Outcome = RunSummary::Outcome;

constexpr double kStart = 1'700'000'000;

class LogbookTest : public testing::Test {
 protected:
  void event(double time, int rank, wire::EventBody body) {
    const auto path =
        merged_ ? run_.events() : run_.rank_events(std::max(rank, 0));
    std::ofstream(path, std::ios::app)
        << wire::to_json(
               {kStart + time,
                rank,
                rank < 0 ? "" : fmt::format("node{}", rank % 2),
                std::move(body)})
        << "\n";
  }

  void init(int rank, int world, double time = 2) {
    event(
        time,
        rank,
        wire::Init{
            "lockstep-train dcgan",
            world,
            2.0,
            {{"cpu", "Some | CPU"}, {"precision", "fp32"}}});
  }

  void iterate(int rank, int64_t step, double total, double time) {
    wire::Iteration body;
    body.step = step;
    body.samples = 16;
    body.data = 0.01 * total;
    body.compute = 0.79 * total;
    body.communication = 0.1 * total;
    body.wait = 0.1 * total;
    body.total = total;
    event(time, rank, body);
  }

  // Two ranks, ten steps of 0.5 s after a first one of 3 s.
  void whole_run() {
    for (int rank = 0; rank < 2; ++rank) {
      init(rank, 2);
      iterate(rank, 1, 3, 5);
      for (int step = 2; step <= 11; ++step) {
        iterate(rank, step, 0.5, 5 + (step - 1) * 0.5);
      }
      event(6, rank, wire::Resource{100e6 + rank, 1.0, 0, 0});
      event(8, rank, wire::Resource{300e6 + rank, 0.5, 0, 0});
      event(
          9, rank, wire::Metric{11, 0, {{"loss_g", 2.0 + rank}, {"acc", 0.5}}});
      event(10, rank, wire::Exit{});
    }
    event(
        9.5,
        0,
        wire::Checkpoint{
            11,
            (run_.checkpoints() / "last.safetensors").string(),
            "final",
            0.2});
  }

  std::string page(const LogbookInput& input = {}) {
    const auto written = write_logbook(run_, input);
    EXPECT_TRUE(written) << written.error().to_string();
    return *os::real_files().read(run_.logbook());
  }

  TemporaryFolder folder_;
  RunDirectory run_ = *RunDirectory::create(folder_.path(), "demo");
  bool merged_ = true;
};

TEST_F(LogbookTest, SummaryOfAWholeRun) {
  whole_run();
  auto summary = summarise(run_);
  ASSERT_TRUE(summary) << summary.error().to_string();
  EXPECT_EQ(summary->id, run_.id());
  EXPECT_EQ(summary->program, "lockstep-train dcgan");
  EXPECT_EQ(summary->outcome, Outcome::kFinished);
  EXPECT_EQ(summary->world_size, 2);
  EXPECT_THAT(summary->nodes, testing::ElementsAre("node0", "node1"));
  EXPECT_DOUBLE_EQ(summary->start, kStart);
  EXPECT_DOUBLE_EQ(summary->end, kStart + 10);
  EXPECT_EQ(summary->steps, 11);
  EXPECT_EQ(summary->epochs, 1);
  EXPECT_EQ(summary->samples, 2 * 11 * 16);
  EXPECT_NEAR(summary->samples_per_second, 2 * 16 / 0.5, 1e-9);
  EXPECT_NEAR(summary->iteration_seconds, 0.5, 1e-9);
  ASSERT_EQ(summary->ranks.size(), 2U);
  const auto& row = summary->ranks[1];
  EXPECT_EQ(row.iterations, 11);
  EXPECT_NEAR(row.total, 8, 1e-9);
  EXPECT_NEAR(row.compute, 0.79 * 8, 1e-9);
  EXPECT_DOUBLE_EQ(row.peak_resident_bytes, 300e6 + 1);
  EXPECT_NEAR(row.mean_cpu, 0.75, 1e-9);
  EXPECT_EQ(row.exit_code, 0);
  EXPECT_DOUBLE_EQ(summary->last_metrics.at("loss_g"), 2.5);
  ASSERT_EQ(summary->checkpoints.size(), 1U);
}

TEST_F(LogbookTest, RankFilesServeWhereNobodyMerged) {
  merged_ = false;
  whole_run();
  auto summary = summarise(run_);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->samples, 2 * 11 * 16);
  // Events of the control side alone do not hide them.
  merged_ = true;
  event(1, -1, wire::Node{"up", ""});
  EXPECT_EQ(summarise(run_)->samples, 2 * 11 * 16);
}

TEST_F(LogbookTest, PageHasWhatAPersonWouldWriteDown) {
  whole_run();
  std::ofstream(run_.metrics())
      << "step,epoch,acc,loss_d,loss_g\n1,0,0.1,1.5,3\n11,0,0.5,0.5,2.5\n";
  std::ofstream(run_.samples() / "fake-9.png") << "x";
  std::ofstream(run_.samples() / "fake-100.png") << "x";
  std::ofstream(run_.samples() / "real-0.png") << "x";
  const std::string text = page(
      {.name = "demo",
       .command = "lockstep run examples/dcgan.yaml",
       .price_per_hour = Money::from_dollars(0.36),
       .price_source = "--price"});
  EXPECT_THAT(text, HasSubstr("# demo\n"));
  EXPECT_THAT(
      text, HasSubstr("**Finished** in 10.0 s: 11 steps, 2 ranks on 2"));
  EXPECT_THAT(text, HasSubstr("2023-11-14 22:13:20 UTC"));
  EXPECT_THAT(text, HasSubstr("lockstep run examples/dcgan.yaml"));
  EXPECT_THAT(text, HasSubstr("Some \\| CPU"));
  EXPECT_THAT(text, HasSubstr("16 samples a rank and step, 32 a step"));
  EXPECT_THAT(
      text, HasSubstr("$0.3600 an hour x 0.002778 h (10.0 s) = **$0.001000**"));
  EXPECT_THAT(text, HasSubstr("price from --price"));
  EXPECT_THAT(text, HasSubstr("640,000 samples or 20,000 iterations"));
  EXPECT_THAT(text, HasSubstr("| loss\\_d | 0.5 | **0.5** | 11 | 1.5 | 1 |"));
  EXPECT_THAT(text, HasSubstr("| acc | 0.5 | 0.1 | 1 | **0.5** | 11 |"));
  EXPECT_THAT(text, HasSubstr("64 samples a second"));
  EXPECT_THAT(text, HasSubstr("(79.0%)"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "[checkpoints/last.safetensors](checkpoints/last.safetensors)"));
  EXPECT_THAT(text, HasSubstr("samples/fake-100.png"));
  EXPECT_THAT(text, HasSubstr("samples/real-0.png"));
  EXPECT_THAT(text, Not(HasSubstr("fake-9.png")));
  EXPECT_THAT(text, Not(HasSubstr("tensorboard --logdir")));  // no file yet
  std::ofstream(run_.tensorboard() / "events.out.tfevents.1.n.1") << "x";
  EXPECT_THAT(page(), HasSubstr("tensorboard --logdir"));
  EXPECT_THAT(text, Not(HasSubstr("How the ranks ended")));
  // Every picture that the page shows is there.
  for (const char* name :
       {"losses.svg",
        "shares.svg",
        "throughput.svg",
        "time_split.svg",
        "memory.svg",
        "cpu.svg"}) {
    EXPECT_THAT(text, HasSubstr(fmt::format("(plots/{})", name)));
    EXPECT_TRUE(os::real_files().exists(run_.plots() / name)) << name;
  }
}

TEST_F(LogbookTest, ACheckpointThatIsReplacedStandsOnce) {
  whole_run();
  event(
      9.8,
      0,
      wire::Checkpoint{
          20, (run_.checkpoints() / "last.safetensors").string(), "signal", 1});
  event(9.9, 0, wire::Checkpoint{12, "/elsewhere/a_b", "best", 0.5});
  const std::string text = page();
  EXPECT_THAT(
      text,
      HasSubstr("(checkpoints/last.safetensors) | 20 | signal | 1.00 | 2 |"));
  EXPECT_THAT(text, HasSubstr("| /elsewhere/a\\_b | 12 | best | 0.50 | 1 |"));
  EXPECT_THAT(text, Not(HasSubstr("final")));
}

TEST_F(LogbookTest, WithoutPriceItSaysHowToGiveOne) {
  whole_run();
  EXPECT_THAT(page(), HasSubstr("No price given. `--price USD`"));
  event(11, -1, wire::Cost{0.25, 1.5});
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("$0.2500 as metered"));
  EXPECT_THAT(text, Not(HasSubstr("No price given")));
  event(12, -1, wire::Cost{0.75, 0});
  EXPECT_THAT(page(), HasSubstr("**$0.7500** in all: the bill"));
}

TEST_F(LogbookTest, ABillStandsBesideWhatADollarBuys) {
  whole_run();
  event(12, -1, wire::Cost{0.75, 0});
  const std::string text = page({.price_per_hour = Money::from_dollars(1)});
  EXPECT_THAT(text, HasSubstr("**$0.7500** in all: the bill"));
  EXPECT_THAT(text, Not(HasSubstr("an hour x")));
  EXPECT_THAT(text, HasSubstr("one dollar buys"));
}

TEST_F(LogbookTest, TheLauncherKnowsItsOwnTime) {
  whole_run();
  const std::string text = page(
      {.price_per_hour = Money::from_dollars(1),
       .started = kStart - 2,
       .ended = kStart + 34,
       .ending = "stopped by the budget"});
  EXPECT_THAT(text, HasSubstr("(36.0 s) = **$0.0100**"));
  EXPECT_THAT(text, HasSubstr("The launcher says: stopped by the budget"));
}

TEST_F(LogbookTest, AFailedRunNamesTheRankAndTheReason) {
  for (int rank = 0; rank < 2; ++rank) {
    init(rank, 2);
    iterate(rank, 1, 1, 3);
  }
  event(4, 0, wire::Exit{0, 15, ""});
  event(4, 1, wire::Exit{1, 0, "NaN loss at step 1"});
  std::ofstream(run_.events(), std::ios::app) << "{\"v\":1,\"kind\":\"it";
  auto summary = summarise(run_);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->outcome, Outcome::kFailed);
  EXPECT_EQ(summary->failure, "rank 1: exit code 1: NaN loss at step 1");
  EXPECT_EQ(summary->ranks[0].exit_code, 143);
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("**Failed** after 4.0 s"));
  EXPECT_THAT(text, HasSubstr("NaN loss at step 1"));
  EXPECT_THAT(text, HasSubstr("ranks/1.log"));
  EXPECT_THAT(text, HasSubstr("None were written."));
}

TEST_F(LogbookTest, TheFirstToFailIsTheCause) {
  for (int rank = 0; rank < 4; ++rank) {
    init(rank, 4);
  }
  event(6, 0, wire::Exit{0, 9, "stopped"});
  event(5, 1, wire::Exit{1, 0, "lost rank 3"});
  event(5.5, 2, wire::Exit{0, 15, ""});
  event(4, 3, wire::Exit{0, 9, "signal 9 (Killed)"});
  EXPECT_EQ(
      summarise(run_)->failure, "rank 3: exit code 137: signal 9 (Killed)");
}

// Its peers see that a killed rank is gone before its supervisor says why.
TEST_F(LogbookTest, ALostRankIsToBlameNotWhoLostIt) {
  for (int rank = 0; rank < 3; ++rank) {
    init(rank, 3);
  }
  event(4, 0, wire::Exit{143, 0, "stopped after a checkpoint"});
  event(5, 1, wire::Exit{3, 0, "rank 2 is gone"});
  EXPECT_EQ(summarise(run_)->failure, "rank 1: exit code 3: rank 2 is gone");
  event(6, 2, wire::Exit{0, 9, "signal 9 (Killed)"});
  EXPECT_EQ(
      summarise(run_)->failure, "rank 2: exit code 137: signal 9 (Killed)");
}

TEST_F(LogbookTest, ARunThatWroteItsCheckpointWasStopped) {
  init(0, 1);
  event(5, 0, wire::Exit{130, 0, "stopped after a checkpoint"});
  EXPECT_EQ(summarise(run_)->outcome, Outcome::kStopped);
  EXPECT_THAT(page(), HasSubstr("**Stopped** after 5.0 s"));
}

TEST_F(LogbookTest, AProgramWithoutEventsHasItsNameFromTheLauncher) {
  event(0, -1, wire::Init{"python train.py", 2, 0, {}});
  event(1, 0, wire::Exit{0, 15, "stopped"});
  event(1, 1, wire::Exit{0, 9, "stopped"});
  auto summary = summarise(run_);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->program, "python train.py");
  EXPECT_EQ(summary->world_size, 2);
  EXPECT_EQ(summary->outcome, Outcome::kStopped);
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("**Stopped** after 1.0 s (2 ranks on 2 nodes)."));
  EXPECT_THAT(text, Not(HasSubstr("Checkpoints")));
  EXPECT_THAT(text, Not(HasSubstr("| steps |")));
  EXPECT_THAT(text, Not(HasSubstr("[samples]")));
}

TEST_F(LogbookTest, AClockThatTellsNoTimeDoesNotMakeTheRunLonger) {
  for (const double odd : {-1e300, 1e300, -1e299, 1e12}) {
    event(odd, 1, wire::Resource{100e6, 1, 0, 0});
    event(odd, 0, wire::Phase{"odd"});
  }
  event(1, 0, wire::Init{"train", 2, 1e300, {}});
  whole_run();
  const auto summary = summarise(run_);
  ASSERT_TRUE(summary);
  EXPECT_DOUBLE_EQ(summary->start, kStart);
  EXPECT_DOUBLE_EQ(summary->end, kStart + 10);
  EXPECT_THAT(page(), HasSubstr("**Finished** in 10.0 s"));
  const auto memory = os::real_files().read(run_.plots() / "memory.svg");
  ASSERT_TRUE(memory);
  EXPECT_LT(memory->size(), 20'000U);
}

TEST_F(LogbookTest, ARunWithoutATimeHasAPage) {
  event(1e300, 0, wire::Init{"train", 1, 0, {}});
  event(1e300, 0, wire::Exit{});
  EXPECT_EQ(summarise(run_)->outcome, Outcome::kFinished);
  EXPECT_THAT(page(), HasSubstr("| started | unknown |"));
}

// A program may count its steps by a clock of nanoseconds.
TEST_F(LogbookTest, AnyStepHasAPage) {
  for (const int64_t step :
       {(int64_t{1} << 53) - 1,
        int64_t{1'763'193'012'000'000'000},
        INT64_MAX}) {
    init(0, 1);
    iterate(0, step, 0.5, 3);
    iterate(0, step, 0.5, 4);
    event(5, 0, wire::Metric{step, INT64_MAX, {{"loss", 0.5}, {"x", 5e-324}}});
    event(6, 0, wire::Epoch{INT64_MAX, 1, INT64_MAX, 1});
    EXPECT_THAT(page(), HasSubstr("(plots/losses.svg)"));
    for (const char* name : {"losses.svg", "shares.svg", "throughput.svg"}) {
      const std::string svg = *os::real_files().read(run_.plots() / name);
      EXPECT_LT(svg.size(), 20'000U) << name;
      EXPECT_THAT(svg, Not(HasSubstr("nan"))) << name;
    }
    std::filesystem::remove(run_.events());
  }
}

TEST_F(LogbookTest, AKilledRunIsUnfinished) {
  init(0, 2);
  init(1, 2);
  iterate(0, 1, 1, 3);
  event(4, 1, wire::Exit{});
  EXPECT_EQ(summarise(run_)->outcome, Outcome::kUnfinished);
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("**Unfinished**: 1 step, 2 ranks on 2 nodes"));
  EXPECT_THAT(text, HasSubstr("none written"));
}

TEST_F(LogbookTest, EpochsThatAPatternReadMayCountFromOne) {
  const auto epochs_of = [&](std::vector<int64_t> told) {
    std::filesystem::remove(run_.events());
    event(0, -1, wire::Init{"python train.py", 1, 0, {}});
    for (const int64_t epoch : told) {
      // Steps after such a line are of the epoch after it.
      event(1, 0, wire::Epoch{.epoch = epoch});
      event(2, 0, wire::Iteration{.step = 1, .epoch = epoch + 1});
    }
    return summarise(run_)->epochs;
  };
  EXPECT_EQ(epochs_of({1, 2}), 2);
  EXPECT_EQ(epochs_of({0, 1}), 3);
  // One that writes events counts from 0, though it goes on in the middle.
  init(0, 1);
  EXPECT_EQ(summarise(run_)->epochs, 3);
  std::filesystem::remove(run_.events());
  event(1, 0, wire::Iteration{.step = 1, .epoch = 1});
  event(1, 0, wire::Iteration{.step = 2, .epoch = 2});
  EXPECT_EQ(summarise(run_)->epochs, 2);
}

TEST_F(LogbookTest, ARestartForgetsTheOldEnd) {
  init(0, 1);
  iterate(0, 1, 9, 3);
  iterate(0, 2, 1, 4);
  event(5, 0, wire::Exit{1, 0, "boom"});
  init(0, 1, 7);
  iterate(0, 2, 9, 8);
  iterate(0, 3, 1, 9);
  event(10, 0, wire::Exit{});
  auto summary = summarise(run_);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->outcome, Outcome::kFinished);
  EXPECT_EQ(summary->starts, 2);
  EXPECT_EQ(summary->steps, 3);
  EXPECT_NEAR(summary->iteration_seconds, 1, 1e-9);
  EXPECT_THAT(page(), HasSubstr("| restarts | 1 |"));
}

TEST_F(LogbookTest, AnEmptyRunSaysSo) {
  auto summary = summarise(run_);
  ASSERT_TRUE(summary);
  EXPECT_EQ(summary->outcome, Outcome::kEmpty);
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("**Empty**"));
  EXPECT_THAT(text, Not(HasSubstr("1970")));
}

TEST_F(LogbookTest, BadFilesAreReportedNotFatal) {
  whole_run();
  std::ofstream(run_.events(), std::ios::app) << "garbage\n";
  std::ofstream(run_.metrics()) << "step,epoch,loss\n1,0,red\n";
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("What could not be read"));
  EXPECT_THAT(text, HasSubstr("1 line of the events"));
  EXPECT_THAT(text, HasSubstr("'red'"));
  // The metric events stand in.
  EXPECT_THAT(text, HasSubstr("| loss\\_g | 2.5 |"));
}

TEST_F(LogbookTest, ManyRanksAreDrawnAsABand) {
  for (int rank = 0; rank < 12; ++rank) {
    init(rank, 12);
    iterate(rank, 1, 1, 3);
    iterate(rank, 2, 1, 4);
    event(5, rank, wire::Resource{1e9, 1, 0.5, 2e9});
    event(6, rank, wire::Exit{});
  }
  const std::string text = page();
  EXPECT_THAT(text, HasSubstr("(plots/gpu.svg)"));
  EXPECT_THAT(
      *os::real_files().read(run_.plots() / "memory.svg"),
      HasSubstr("mean of ranks"));
}

TEST_F(LogbookTest, ClusterEventsAreListedInOrder) {
  whole_run();
  event(7, -1, wire::Decision{"scale c5.xlarge=2", "cheaper"});
  event(3, -1, wire::Node{"up", "10.0.0.1"});
  const std::string text = page();
  EXPECT_LT(text.find("up: 10.0.0.1"), text.find("scale c5.xlarge=2: cheaper"));
}

TEST(LogbookMetrics, DirectionIsReadFromTheName) {
  EXPECT_EQ(less_is_better("Loss_D"), true);
  EXPECT_EQ(less_is_better("val/accuracy"), false);
  EXPECT_EQ(less_is_better("D(x)"), std::nullopt);
}

}  // namespace
}  // namespace lockstep::record
