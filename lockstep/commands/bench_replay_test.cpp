#include "lockstep/commands/bench_replay.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace lockstep::commands {
namespace {

constexpr const char* kHeader =
    "suite,experiment,instance,nodes,usd_per_hour_each,pi_count,"
    "pi_total_sum_ms,pi_mean_ms,pi2_ms,pi2_5_mean_ms,pi2_10_mean_ms,"
    "first32_mean_ms,first64_mean_ms,half_second_mean_ms,wallclock_ms\n";

std::string row(const std::string& values) {
  return std::string(kHeader) + values + "\n";
}

TEST(RecordedRuns, ColumnsAreReadByName) {
  const auto read =
      parse_recorded_runs(row("s,e,c5,2,0.5,1000,9,8,1,2,3,4,5,6,7"), "r.csv");
  ASSERT_TRUE(read) << read.error().to_string();
  ASSERT_EQ(read->runs.size(), 1U);
  const auto& run = read->runs[0];
  EXPECT_EQ(run.experiment, "s/e");
  EXPECT_EQ(run.seen.dollars_per_hour, 1);
  EXPECT_EQ(run.mean, 8);
  EXPECT_EQ(run.iterations, 1000);
  EXPECT_EQ(*run.seen.stages[0], 1);
  EXPECT_EQ(*run.seen.stages[4], 5);
}

TEST(RecordedRuns, AnEmptyStageWasNotRecorded) {
  const auto read =
      parse_recorded_runs(row("s,e,c5,2,0.5,1000,9,8,1,2,,nan,5,6,"), "r.csv");
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_FALSE(read->runs[0].seen.stages[2]);
  EXPECT_FALSE(read->runs[0].seen.stages[3]);
}

TEST(RecordedRuns, ARunWithoutAPriceIsLeftOutAndTold) {
  for (const char* price : {"0", ""}) {
    const auto read = parse_recorded_runs(
        row("s,e,c4,1,0.1,10,1,1,1,1,1,1,1,1,1\ns,e,c5,2," +
            std::string(price) + ",1000,9,8,1,2,3,4,5,6,7"),
        "r.csv");
    ASSERT_TRUE(read) << read.error().to_string();
    EXPECT_EQ(read->runs.size(), 1U);
    ASSERT_EQ(read->left_out.size(), 1U);
    EXPECT_NE(read->left_out[0].find("r.csv: row 2 (e, c5)"), std::string::npos)
        << read->left_out[0];
    EXPECT_NE(read->left_out[0].find("usd_per_hour_each"), std::string::npos);
  }
}

TEST(RecordedRuns, BadFilesAreRefusedByPlace) {
  const auto refused = [](const std::string& text, const std::string& word) {
    const auto read = parse_recorded_runs(text, "r.csv");
    ASSERT_FALSE(read) << text;
    EXPECT_EQ(read.error().code(), ErrorCode::kInvalidInput);
    EXPECT_NE(read.error().to_string().find(word), std::string::npos)
        << read.error().to_string();
  };
  refused("", "header");
  refused(kHeader, "no run in it");
  refused("suite,experiment\na,b\n", "usd_per_hour_each");
  refused(row("s,e,c5,2,cheap,1000,9,8,1,2,3,4,5,6,7"), "'cheap'");
  refused(row("s,e,c5,2,-1,1000,9,8,1,2,3,4,5,6,7"), "'-1'");
  refused(row("s,e,c5,2,0.5,1000,9,8,1,2,3"), "r.csv:2");
  refused(row("s,e,c5,2,0,1000,9,8,1,2,3,4,5,6,7"), "no run that can");
}

TEST(Replay, TheKeysAreTheContract) {
  const auto json = nlohmann::json::parse(replay_json({}));
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) {
    keys.push_back(key);
  }
  EXPECT_EQ(
      keys,
      (std::vector<std::string>{
          "cheapest",
          "experiments",
          "fastest",
          "max_regret",
          "mean_regret",
          "probe_cost"}));
}

}  // namespace
}  // namespace lockstep::commands
