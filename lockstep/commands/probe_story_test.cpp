#include "lockstep/commands/probe_story.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/commands/bench_report.h"
#include "lockstep/commands/past_runs.h"

namespace lockstep::commands {
namespace {

wire::Event iteration(int rank, int64_t step, double total, double wait = 0) {
  return {
      .time = 1000 + static_cast<double>(step),
      .rank = rank,
      .node = "n",
      .body = wire::Iteration{
          .step = step,
          .epoch = 0,
          .samples = 8,
          .data = 0,
          .compute = total - wait - 0.01,
          .communication = 0.01,
          .wait = wait,
          .total = total}};
}

wire::Event init(int rank, int world_size, double seconds) {
  return {
      .time = 1000,
      .rank = rank,
      .node = "n",
      .body = wire::Init{
          .program = "p",
          .world_size = world_size,
          .seconds = seconds,
          .facts = {{"total_steps", "500"}}}};
}

TEST(ProbeStory, AStepCountsOnceAllRanksToldIt) {
  ProbeStory story;
  story.take(init(0, 2, 1));
  story.take(init(1, 2, 3));
  story.take(iteration(0, 1, 0.2));
  EXPECT_TRUE(story.steps().empty());
  story.take(iteration(1, 1, 0.3));
  ASSERT_EQ(story.steps().size(), 1U);
  EXPECT_EQ(story.steps()[0].seconds, 0.3);
  EXPECT_EQ(story.steps()[0].samples, 16);
  EXPECT_EQ(story.init(), 3);
  EXPECT_EQ(story.first_sign(), 997);
  EXPECT_EQ(story.total_steps(), 500);
}

TEST(ProbeStory, ComputeIsThatOfTheSlowestRankWithoutItsWait) {
  ProbeStory story;
  story.take(init(0, 2, 1));
  story.take(iteration(0, 1, 0.3, 0.2));
  story.take(iteration(1, 1, 0.3, 0));
  EXPECT_NEAR(story.steps()[0].compute, 0.29, 1e-12);
}

TEST(ProbeStory, ToldPhasesPartTheSeries) {
  ProbeStory story;
  story.take(init(0, 1, 1));
  const auto phase = [&](const char* name) {
    story.take(
        {.time = 1000, .rank = 0, .node = "n", .body = wire::Phase{name}});
  };
  phase("warm-up");
  for (int step = 1; step <= 2; ++step) {
    story.take(iteration(0, step, 1.0));
  }
  phase("train");
  for (int step = 3; step <= 6; ++step) {
    story.take(iteration(0, step, 1.05));
  }
  phase("validation");  // without iterations
  phase("train");
  for (int step = 7; step <= 8; ++step) {
    story.take(iteration(0, step, 1.05));
  }
  const ProbeFigures figures = probe_figures(story);
  // The first of the phase is left out as well.
  EXPECT_EQ(figures.iterations->present.size(), 5U);
  EXPECT_EQ(figures.past_steps, 3);
  EXPECT_NEAR(figures.past_seconds, 2 + 1.05, 1e-9);
  EXPECT_NEAR(figures.iterations->estimate.mean, 1.05, 1e-9);
}

TEST(ProbeStory, TheFirstLineOfAPatternHasNoTime) {
  ProbeStory story;
  for (int step = 1; step <= 5; ++step) {
    story.take(iteration(0, step, step == 1 ? 0 : 0.5));
  }
  const ProbeFigures figures = probe_figures(story);
  EXPECT_EQ(figures.seen, 5U);
  EXPECT_NEAR(figures.iterations->estimate.mean, 0.5, 1e-12);
  EXPECT_EQ(figures.iterations->impossible, 0U);
}

TEST(ProbeStory, TheControlSideSaysNothingAboutIterations) {
  ProbeStory story;
  story.take(
      {.time = 5, .rank = -1, .node = "n", .body = wire::Node{"up", ""}});
  EXPECT_EQ(story.first_sign(), 0);
  EXPECT_FALSE(probe_figures(story).iterations);
}

TEST(WholeWork, PastStepsCountAsTheyWere) {
  ProbeStory story;
  story.take(init(0, 1, 2));
  for (int step = 1; step <= 10; ++step) {
    story.take(iteration(0, step, 0.1));
  }
  for (int step = 11; step <= 30; ++step) {
    story.take(iteration(0, step, 0.5));
  }
  const auto work = whole_work(probe_figures(story), 100);
  ASSERT_TRUE(work);
  EXPECT_EQ(work->init, 2);
  double seconds = 0;
  for (const auto& phase : work->phases) {
    seconds += phase.iterations * phase.iteration.mean;
  }
  EXPECT_NEAR(seconds, 10 * 0.1 + 90 * 0.5, 1e-9);
  EXPECT_FALSE(whole_work(probe_figures(story), std::nullopt));
}

TEST(WholeWork, ARunThatIsShorterThanItsPast) {
  ProbeStory story;
  for (int step = 1; step <= 30; ++step) {
    story.take(iteration(0, step, step <= 20 ? 0.5 : 0.1));
  }
  const auto work = whole_work(probe_figures(story), 8);
  ASSERT_TRUE(work);
  double seconds = 0;
  for (const auto& phase : work->phases) {
    EXPECT_GE(phase.iterations, 0);
    seconds += phase.iterations * phase.iteration.mean;
  }
  EXPECT_NEAR(seconds, 8 * 0.5, 1e-9);
}

TEST(ProbeStory, TimesThatAreNoneCountNowhere) {
  ProbeStory story;
  for (int step = 1; step <= 30; ++step) {
    const double odd = step == 7 ? 1e9 : std::nan("");
    story.take(iteration(0, step, step % 10 == 7 ? odd : 0.1));
  }
  const ProbeFigures figures = probe_figures(story);
  EXPECT_EQ(figures.seen, 30U);
  EXPECT_EQ(figures.past_steps, 1);  // the first
  EXPECT_NEAR(figures.past_seconds, 0.1, 1e-9);
  EXPECT_EQ(figures.seconds[6], 0);
  EXPECT_EQ(figures.seconds[16], 0);
  EXPECT_EQ(figures.iterations->present.size(), 26U);
}

TEST(ProbeStory, ATotalThatIsPassedWasAnEpochs) {
  ProbeStory story;
  story.take(init(0, 1, 1));
  story.take(iteration(0, 500, 1));
  EXPECT_EQ(probe_figures(story).total_steps, 500);
  story.take(iteration(0, 501, 1));
  EXPECT_FALSE(probe_figures(story).total_steps);
}

wire::Event at(double time, decltype(wire::Event::body) body) {
  return {.time = time, .rank = 0, .node = "n", .body = std::move(body)};
}

// Iterations of a second at 1001, 1002; an epoch's end from 1002 to 1006: half
// a second of pictures, a validation of 2, a checkpoint of 1.5; then iterations
// at 1007 and 1008.
ProbeStory story_with_epoch_end(const std::string& part) {
  ProbeStory story;
  story.take(
      at(1000,
         wire::Init{
             .program = "p",
             .world_size = 1,
             .seconds = 1,
             .facts = {
                 {"total_steps", "10"},
                 {"steps_per_epoch", "4"},
                 {"validation_part", part}}}));
  story.take(iteration(0, 1, 1));
  story.take(iteration(0, 2, 1));
  story.take(at(1002.5, wire::Phase{"validation"}));
  story.take(at(1004.5, wire::Phase{"train"}));
  story.take(at(1006, wire::Checkpoint{2, "last", "rehearsal", 1.5}));
  for (int64_t step = 3; step <= 4; ++step) {
    wire::Event event = iteration(0, step, 1);
    event.time = 1004 + static_cast<double>(step);
    story.take(event);
  }
  return story;
}

TEST(ProbeStory, AnEpochsEndIsMeasuredBetweenIterations) {
  const auto breaks = story_with_epoch_end("1").breaks();
  ASSERT_EQ(breaks.size(), 1U);
  EXPECT_NEAR(breaks[0].validation, 2, 1e-9);
  EXPECT_NEAR(breaks[0].checkpoint, 1.5, 1e-9);
  EXPECT_NEAR(breaks[0].other, 0.5, 1e-9);
  // A validation that saw a quarter of its data is taken for a whole one.
  EXPECT_NEAR(story_with_epoch_end("0.25").breaks()[0].validation, 8, 1e-9);
}

TEST(ProbeStory, WhatFollowsTheLastIterationIsTheClosing) {
  ProbeStory story = story_with_epoch_end("1");
  EXPECT_EQ(story.closing(), 0);  // it still runs
  story.take(at(1009, wire::Checkpoint{4, "last", "signal", 0.75}));
  story.take(at(1010, wire::Exit{143, 0, ""}));
  EXPECT_NEAR(story.closing(), 1.25, 1e-9);
  // With the pictures that a run draws when it ends by itself.
  EXPECT_NEAR(probe_figures(story).closing, 1.75, 1e-9);
}

TEST(ProbeStory, TheEndOfARunIsAnEpochsEndToo) {
  ProbeStory story = story_with_epoch_end("1");
  story.take(at(1008.25, wire::Phase{"validation"}));
  story.take(at(1011.25, wire::Phase{"train"}));
  story.take(at(1012, wire::Checkpoint{4, "last", "final", 0.5}));
  story.take(at(1013, wire::Exit{}));
  const ProbeFigures figures = probe_figures(story);
  ASSERT_EQ(figures.epoch_ends.size(), 2U);
  EXPECT_NEAR(figures.epoch_ends[1], 3.5, 1e-9);
  EXPECT_NEAR(figures.closing, 1.5, 1e-9);
}

TEST(ProbeStory, AnIterationThatWasDroppedIsNoEpochsEnd) {
  ProbeStory story;
  story.take(iteration(0, 1, 1));
  story.take(at(1001.5, wire::Phase{"validation"}));
  story.take(at(1002, wire::Phase{"train"}));
  story.take(iteration(0, 3, 1));
  EXPECT_TRUE(story.breaks().empty());
}

TEST(WholeWork, EpochsEndsCountWithTheRunsOwn) {
  const ProbeFigures figures = probe_figures(story_with_epoch_end("1"));
  // Ten steps, four an epoch: after 4, 8 and 10.
  EXPECT_EQ(num_epoch_ends(figures, 10), 3);
  EXPECT_EQ(num_epoch_ends(figures, 8), 2);
  const auto work = whole_work(figures, 10);
  ASSERT_TRUE(work);
  EXPECT_NEAR(work->phases.back().iterations, 3, 1e-9);
  EXPECT_NEAR(work->phases.back().iteration.mean, 3.5, 1e-9);
  // A program that does not tell its epochs: as often as it was seen.
  ProbeFigures untold = figures;
  untold.epoch_steps.reset();
  EXPECT_NEAR(num_epoch_ends(untold, 40), 10, 1e-9);
}

Probe probe(const std::string& name, double seconds, double price) {
  Probe one;
  one.candidate = {name, 1, Money::from_dollars(price), "command line"};
  one.story.take(init(0, 1, 1));
  for (int step = 1; step <= 32; ++step) {
    one.story.take(iteration(0, step, seconds));
  }
  one.figures = probe_figures(one.story);
  one.standing = economics::Standing::kEnough;
  return one;
}

TEST(BenchReport, TheVerdictNamesTheCheapestAndTheFastest) {
  const BenchReport report = make_bench_report(
      "j", {probe("dear", 0.1, 1), probe("cheap", 0.2, 0.1)}, {}, "/x");
  EXPECT_EQ(report.rows[0].probe.candidate.name, "cheap");
  EXPECT_EQ(report.cheapest, 0U);
  EXPECT_EQ(report.fastest, 1U);
  EXPECT_TRUE(report.sure);
  EXPECT_NE(
      report.verdict.find(
          "cheap is the cheapest: 5.0 times as much for a "
          "dollar than on dear; dear is the fastest"),
      std::string::npos)
      << report.verdict;
}

TEST(BenchReport, EachCandidateHasItsOwnNumberOfSteps) {
  Probe half = probe("two", 0.1, 1);
  half.figures.total_steps = 250;
  const BenchReport report =
      make_bench_report("j", {probe("one", 0.1, 1), half}, {}, "/x");
  for (const BenchRow& row : report.rows) {
    const bool is_half = row.probe.candidate.name == "two";
    EXPECT_EQ(row.total_steps, is_half ? 250 : 500);
    EXPECT_NEAR(row.whole->seconds.value, is_half ? 26 : 51, 0.1);
  }
  const BenchReport given =
      make_bench_report("j", {probe("one", 0.1, 1), half}, 100, "/x");
  EXPECT_EQ(given.rows[0].total_steps, 100);
  EXPECT_EQ(given.rows[1].total_steps, 100);
}

TEST(BenchReport, TooCloseIsSaid) {
  const BenchReport report = make_bench_report(
      "j", {probe("a", 0.100, 1), probe("b", 0.101, 1)}, {}, "/x");
  EXPECT_FALSE(report.sure);
  EXPECT_NE(report.verdict.find("too close to call"), std::string::npos);
}

TEST(BenchReport, FailedOnesComeLastWithTheirReason) {
  Probe failed;
  failed.candidate = {"gone", 1, Money::from_dollars(1), "command line"};
  failed.standing = economics::Standing::kFailed;
  failed.reason = "cannot be reached";
  const BenchReport report =
      make_bench_report("j", {failed, probe("a", 0.1, 1)}, {}, "/x");
  EXPECT_EQ(report.rows[1].probe.candidate.name, "gone");
  EXPECT_NE(report.verdict.find("only one"), std::string::npos);
  const BenchReport none = make_bench_report("j", {failed}, {}, "/x");
  EXPECT_NE(none.verdict.find("gone: cannot be reached"), std::string::npos);
}

TEST(Comparisons, ThePredictionBeforeTheRunCounts) {
  const std::vector<KeptPrediction> kept = {
      {100, "j", "a", 1, 50, 1},
      {200, "j", "a", 1, 60, 1},
      {400, "j", "a", 1, 70, 1},
      {100, "other", "a", 1, 10, 1}};
  PastRun run;
  run.machine = "a";
  run.started = 300;
  run.finished = true;
  run.seconds = 50;
  const auto found = compare_predictions(kept, {run}, "j");
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NEAR(found[0].error(), 0.2, 1e-12);
  run.finished = false;
  EXPECT_TRUE(compare_predictions(kept, {run}, "j").empty());
}

}  // namespace
}  // namespace lockstep::commands
