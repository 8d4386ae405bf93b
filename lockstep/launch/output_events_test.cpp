#include "lockstep/launch/output_events.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

TEST(Pattern, ReadsNamedNumbers) {
  auto pattern =
      Pattern::compile(R"(step (?<step>\d+) loss (?<loss>[-\d.e]+|nan))");
  ASSERT_TRUE(pattern.has_value());
  std::map<std::string, double> numbers;
  ASSERT_TRUE(pattern->match("x step 12 loss 3e-1 y", numbers));
  EXPECT_EQ(numbers["step"], 12);
  EXPECT_EQ(numbers["loss"], 0.3);
  EXPECT_FALSE(pattern->match("step x", numbers));
}

TEST(Pattern, TakesPythonNamesAndRefusesWhatIsBroken) {
  EXPECT_TRUE(Pattern::compile(R"((?P<epoch>\d+))").has_value());
  const auto broken = Pattern::compile("step (?<step>");
  ASSERT_FALSE(broken.has_value());
  EXPECT_NE(broken.error().message().find("character"), std::string::npos);
  const auto nameless = Pattern::compile(R"(step (\d+))");
  ASSERT_FALSE(nameless.has_value());
  EXPECT_NE(nameless.error().message().find("(?<step>"), std::string::npos);
}

TEST(Pattern, GivesUpOnEndlessBacktracking) {
  auto pattern = Pattern::compile("(?<step>(a+)+)$");
  ASSERT_TRUE(pattern.has_value());
  std::map<std::string, double> numbers;
  EXPECT_FALSE(pattern->match(std::string(40, 'a') + "b", numbers));
}

std::vector<wire::EventBody>
take(OutputEvents& events, const std::vector<std::string>& lines, double time) {
  std::vector<wire::EventBody> bodies;
  for (wire::Event& event : events.take(lines, time)) {
    bodies.push_back(std::move(event.body));
  }
  return bodies;
}

std::vector<wire::Iteration> iterations(
    OutputEvents& events,
    const std::vector<std::string>& lines,
    double time) {
  std::vector<wire::Iteration> found;
  for (const wire::Event& event : events.take(lines, time)) {
    if (const auto* one = std::get_if<wire::Iteration>(&event.body)) {
      found.push_back(*one);
    }
  }
  return found;
}

TEST(OutputEvents, LinesOfOneLookShareItsTime) {
  auto events = OutputEvents::make(R"(step (?<step>\d+))", "");
  ASSERT_TRUE(events.has_value());
  EXPECT_TRUE(take(*events, {}, 10).empty());
  const auto first = iterations(*events, {"step 1", "hello", "step 2"}, 10.1);
  ASSERT_EQ(first.size(), 2);
  EXPECT_EQ(first[0].total, 0);  // since when is not known
  EXPECT_NEAR(first[1].total, 0.05, 1e-6);
  const auto next =
      iterations(*events, {"step 3", "step 4", "step 5", "step 6"}, 10.2);
  ASSERT_EQ(next.size(), 4);
  for (const wire::Iteration& one : next) {
    EXPECT_NEAR(one.total, 0.025, 1e-6);
  }
}

TEST(OutputEvents, StepsThatBeginAnewAreCountedOn) {
  auto events = OutputEvents::make(R"(step (?<step>\d+))", "");
  ASSERT_TRUE(events.has_value());
  std::vector<int64_t> steps;
  for (const char* line : {"step 1", "step 2", "step 3", "step 1", "step 2"}) {
    steps.push_back(iterations(*events, {line}, 10)[0].step);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3, 4, 5}));
  auto from_zero = OutputEvents::make(R"(step (?<step>\d+))", "");
  steps.clear();
  for (const char* line : {"step 0", "step 10", "step 0", "step 10"}) {
    steps.push_back(iterations(*from_zero, {line}, 10)[0].step);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 10, 11, 20}));
}

TEST(OutputEvents, AProgramThatWasStartedAgainTellsItsOwnSteps) {
  auto events =
      OutputEvents::make(R"(step (?<step>\d+))", R"(epoch (?<epoch>\d+) done)");
  ASSERT_TRUE(events.has_value());
  take(*events, {"step 1", "step 2", "step 3", "epoch 0 done", "step 4"}, 10);
  events->restart();
  std::vector<int64_t> steps;
  for (const char* line : {"step 3", "step 4", "step 5"}) {
    const auto one = iterations(*events, {line}, 20)[0];
    steps.push_back(one.step);
    EXPECT_EQ(one.total, 0) << line;  // not the time without ranks
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 4, 5}));
  const auto epoch = take(*events, {"epoch 1 done"}, 21);
  EXPECT_EQ(std::get<wire::Epoch>(epoch[0]).steps, 5);
}

TEST(OutputEvents, AStepThatIsToldTwiceIsOneIteration) {
  auto events = OutputEvents::make(
      R"(step (?<step>\d+) ((loss (?<loss>[\d.]+))|(val (?<val>[\d.]+))))", "");
  ASSERT_TRUE(events.has_value());
  std::vector<int64_t> steps;
  std::map<std::string, std::vector<int64_t>> metrics;
  for (const char* step : {"0", "100", "200"}) {
    for (const char* rest : {" loss 0.5", " val 0.7"}) {
      const std::string line = std::string("step ") + step + rest;
      for (const wire::EventBody& body : take(*events, {line}, 10)) {
        if (const auto* one = std::get_if<wire::Iteration>(&body)) {
          steps.push_back(one->step);
        } else {
          const auto& metric = std::get<wire::Metric>(body);
          metrics[metric.values.begin()->first].push_back(metric.step);
        }
      }
    }
  }
  const std::vector<int64_t> expected = {0, 100, 200};
  EXPECT_EQ(steps, expected);
  EXPECT_EQ(metrics["loss"], expected);
  EXPECT_EQ(metrics["val"], expected);
}

TEST(OutputEvents, AStepOfAnotherEpochIsAnotherOne) {
  auto events =
      OutputEvents::make(R"(epoch (?<epoch>\d+) step (?<step>\d+))", "");
  ASSERT_TRUE(events.has_value());
  std::vector<int64_t> steps;
  for (const char* line :
       {"epoch 0 step 1", "epoch 1 step 1", "epoch 2 step 1"}) {
    steps.push_back(iterations(*events, {line}, 10)[0].step);
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2, 3}));
}

TEST(OutputEvents, MakesIterationsAndMetrics) {
  auto events = OutputEvents::make(
      R"(step (?<step>\d+) of (?<epoch>\d+) loss (?<loss>[\d.]+))", "");
  ASSERT_TRUE(events.has_value());
  EXPECT_TRUE(take(*events, {"hello"}, 9).empty());
  take(*events, {"step 1 of 0 loss 2.5"}, 10);
  const auto made = take(*events, {"step 2 of 0 loss 1.5"}, 10.5);
  ASSERT_EQ(made.size(), 2);
  const auto& iteration = std::get<wire::Iteration>(made[0]);
  EXPECT_EQ(iteration.step, 2);
  EXPECT_DOUBLE_EQ(iteration.total, 0.5);
  EXPECT_DOUBLE_EQ(iteration.compute, 0.5);
  const auto& metric = std::get<wire::Metric>(made[1]);
  EXPECT_EQ(metric.step, 2);
  EXPECT_EQ(metric.values.at("loss"), 1.5);
}

TEST(OutputEvents, CountsStepsAndEpochsThatHaveNoNumber) {
  auto events = OutputEvents::make(
      R"(batch took (?<seconds>[\d.]+))", R"(epoch done acc (?<acc>[\d.]+))");
  ASSERT_TRUE(events.has_value());
  take(*events, {"batch took 0.25"}, 10);
  const auto second = take(*events, {"batch took 0.5"}, 20);
  EXPECT_EQ(std::get<wire::Iteration>(second[0]).step, 2);
  EXPECT_DOUBLE_EQ(std::get<wire::Iteration>(second[0]).total, 0.5);
  const auto epoch = take(*events, {"epoch done acc 0.9"}, 30);
  ASSERT_EQ(epoch.size(), 2);
  EXPECT_EQ(std::get<wire::Epoch>(epoch[0]).epoch, 0);
  EXPECT_EQ(std::get<wire::Epoch>(epoch[0]).steps, 2);
  EXPECT_EQ(std::get<wire::Metric>(epoch[1]).values.at("acc"), 0.9);
  const auto next = take(*events, {"batch took 0.5"}, 31);
  EXPECT_EQ(std::get<wire::Iteration>(next[0]).epoch, 1);
}

}  // namespace
}  // namespace lockstep::launch
