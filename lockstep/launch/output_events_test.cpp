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

TEST(OutputEvents, MakesIterationsAndMetrics) {
  auto events = OutputEvents::make(
      R"(step (?<step>\d+) of (?<epoch>\d+) loss (?<loss>[\d.]+))", "");
  ASSERT_TRUE(events.has_value());
  EXPECT_TRUE(events->take("hello", 9).empty());
  events->take("step 1 of 0 loss 2.5", 10);
  const auto made = events->take("step 2 of 0 loss 1.5", 10.5);
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
  events->take("batch took 0.25", 10);
  const auto second = events->take("batch took 0.5", 20);
  EXPECT_EQ(std::get<wire::Iteration>(second[0]).step, 2);
  EXPECT_DOUBLE_EQ(std::get<wire::Iteration>(second[0]).total, 0.5);
  const auto epoch = events->take("epoch done acc 0.9", 30);
  ASSERT_EQ(epoch.size(), 2);
  EXPECT_EQ(std::get<wire::Epoch>(epoch[0]).epoch, 0);
  EXPECT_EQ(std::get<wire::Epoch>(epoch[0]).steps, 2);
  EXPECT_EQ(std::get<wire::Metric>(epoch[1]).values.at("acc"), 0.9);
  const auto next = events->take("batch took 0.5", 31);
  EXPECT_EQ(std::get<wire::Iteration>(next[0]).epoch, 1);
}

}  // namespace
}  // namespace lockstep::launch
