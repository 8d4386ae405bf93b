#include "lockstep/train/step_trace.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "lockstep/record/temporary_folder_test.h"

namespace lockstep::train {
namespace {

TEST(StepTraceTest, TracesTheStepsThatWereAskedFor) {
  const record::TemporaryFolder folder;
  const auto file = folder.path() / "trace.json";
  StepTrace trace(2, at::kCPU, file);
  int written = 0;
  for (int step = 0; step < StepTrace::kSkipped + 5; ++step) {
    written += trace.before_step() ? 1 : 0;
    at::ones({4}).neg_();
  }
  EXPECT_EQ(written, 1);
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(text.find("traceEvents"), std::string::npos);
  size_t found = 0;
  for (size_t at = 0; (at = text.find("\"aten::neg_\"", at)) != text.npos;
       ++at) {
    ++found;
  }
  EXPECT_EQ(found, 2);
}

TEST(StepTraceTest, ARunThatEndsWithinTheStepsHasThoseThatThereWere) {
  const record::TemporaryFolder folder;
  const auto file = folder.path() / "trace.json";
  StepTrace trace(3, at::kCPU, file);
  for (int step = 0; step < StepTrace::kSkipped; ++step) {
    EXPECT_FALSE(trace.before_step());
  }
  EXPECT_FALSE(trace.finish());
  EXPECT_TRUE(trace.is_missing());
  EXPECT_FALSE(trace.before_step());
  EXPECT_TRUE(trace.finish());
  EXPECT_FALSE(trace.is_missing());
  EXPECT_TRUE(std::filesystem::exists(file));
}

TEST(StepTraceTest, TracesNothingUnlessAsked) {
  StepTrace trace(0, at::kCPU, "nowhere/trace.json");
  for (int step = 0; step < StepTrace::kSkipped + 5; ++step) {
    EXPECT_FALSE(trace.before_step());
  }
  EXPECT_FALSE(trace.finish());
  EXPECT_FALSE(trace.is_missing());
}

}  // namespace
}  // namespace lockstep::train
