#include "lockstep/reach/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/reach/near_and_far_test.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

os::Deadline soon() {
  return os::Deadline::after(std::chrono::seconds(60));
}

TEST_F(NearAndFar, SendsTheProgramOnce) {
  {
    const auto first = session("a");
    ASSERT_TRUE(first);
    EXPECT_TRUE(first->was_sent());
    EXPECT_EQ(first->host(), "a");
  }
  const auto again = session("a");
  ASSERT_TRUE(again);
  EXPECT_FALSE(again->was_sent());
  const auto other = session("b");
  ASSERT_TRUE(other);
  EXPECT_TRUE(other->was_sent());
  EXPECT_EQ(calls(), 3U);
}

TEST_F(NearAndFar, AnswersInOrderAndKeepsErrors) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  EXPECT_EQ(far->call("echo", {{"x", 1}}, soon()).value()["x"], 1);
  const auto failed = far->call("fail", {}, soon());
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kNoSpace);
  EXPECT_EQ(
      failed.error().to_string(),
      "a: writing x: the disk is full; buy another");
  EXPECT_FALSE(far->call("throw", {}, soon()));
  EXPECT_THAT(
      far->call("dance", {}, soon()).error().message(), HasSubstr("'dance'"));
  EXPECT_EQ(far->call("echo", {{"x", 2}}, soon()).value()["x"], 2);
}

TEST_F(NearAndFar, ManyRequestsUnderWay) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  int made = 0;
  const auto next = [&]() -> Result<std::optional<json>> {
    if (++made > 200) {
      return std::optional<json>();
    }
    return std::optional<json>(json{{"text", std::string(100000, 'x')}});
  };
  EXPECT_TRUE(far->call_many("take", next, std::chrono::seconds(60)));
  made = 190;
  const auto failed = far->call_many("fail", next, std::chrono::seconds(60));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kNoSpace);
  // It is still in step.
  EXPECT_EQ(far->call("echo", {{"x", 3}}, soon()).value()["x"], 3);
}

TEST_F(NearAndFar, ASessionThatBreaksSaysSo) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  const auto died = far->call("die", {}, soon());
  ASSERT_FALSE(died);
  EXPECT_EQ(died.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(died.error().message(), HasSubstr("a:"));
  EXPECT_EQ(
      far->call("echo", {}, soon()).error().code(), ErrorCode::kUnavailable);
}

TEST_F(NearAndFar, TellsWhatIsWrongOfEachHostInOrder) {
  const auto all =
      reach_all({"unknown", "a", "refused", "other", "file", "-x"}, options());
  ASSERT_EQ(all.size(), 6U);
  EXPECT_THAT(all[0].error().message(), HasSubstr("unknown: the host"));
  ASSERT_TRUE(all[1]) << all[1].error().to_string();
  EXPECT_EQ((*all[1])->host(), "a");
  EXPECT_THAT(all[2].error().message(), HasSubstr("Permission denied"));
  EXPECT_THAT(all[3].error().message(), HasSubstr("architecture is riscv64"));
  EXPECT_THAT(all[4].error().message(), HasSubstr("Not a directory"));
  EXPECT_EQ(all[5].error().code(), ErrorCode::kInvalidInput);
}

TEST_F(NearAndFar, PassesOverWhatLoginScriptsPrint) {
  const auto far = session("noisy");
  ASSERT_TRUE(far);
  EXPECT_TRUE(far->call("echo", {}, soon()));
}

TEST_F(NearAndFar, WorksWithoutGzip) {
  const auto far = session("plain");
  ASSERT_TRUE(far);
  EXPECT_TRUE(far->was_sent());
}

TEST_F(NearAndFar, TriesAgainWhenTooManyLogInAtOnce) {
  EXPECT_TRUE(session("busy"));
  EXPECT_EQ(calls(), 2U);
}

TEST_F(NearAndFar, GivesUpOnAHostThatDoesNotAnswer) {
  ReachOptions impatient = options();
  impatient.patience = std::chrono::milliseconds(300);
  const auto far = reach("silent", impatient);
  ASSERT_FALSE(far);
  EXPECT_THAT(far.error().message(), HasSubstr("no answer within 300 ms"));
}

TEST_F(NearAndFar, SaysWhichSshIsLacking) {
  ::setenv("LOCKSTEP_SSH", "/nowhere/ssh", 1);
  const auto far = reach("a", options());
  ASSERT_FALSE(far);
  EXPECT_THAT(far.error().to_string(), HasSubstr("openssh-client"));
}

TEST_F(NearAndFar, KnowsFacts) {
  const auto far = session("a");
  ASSERT_TRUE(far);
  const json facts = far->call("facts", {}, soon()).value();
  EXPECT_EQ(facts["lockstep_home"], home("a").string());
  EXPECT_GT(facts["cores"].get<int>(), 0);
  EXPECT_GT(facts["free"].get<uint64_t>(), 0U);
  EXPECT_EQ(facts["environment"]["HOME"], (folder_ / "homes" / "a").string());
  EXPECT_TRUE(facts["addresses"].is_array());
}

TEST_F(NearAndFar, AHomeThatIsNamedIsUsed) {
  ::setenv("LOCKSTEP_FAR_HOME", "~/elsewhere", 1);
  const auto far = session("a");
  ::unsetenv("LOCKSTEP_FAR_HOME");
  ASSERT_TRUE(far);
  EXPECT_TRUE(
      std::filesystem::exists(folder_ / "homes" / "a" / "elsewhere" / "bin"));
}

}  // namespace
}  // namespace lockstep::reach
