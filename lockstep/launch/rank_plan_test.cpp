#include "lockstep/launch/rank_plan.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

GenerationFacts facts() {
  GenerationFacts facts;
  facts.run_id = "x-1";
  facts.run_directory = "/runs/x-1";
  facts.master_address = "127.0.0.1";
  facts.master_port = 29512;
  facts.coordinator = "127.0.0.1:4000";
  facts.key_file = "/runs/x-1/.key";
  facts.generation = 2;
  facts.max_restarts = 3;
  return facts;
}

RankPlan two_nodes() {
  return *plan_ranks({{"a", 2, 8, "eth0"}, {"b", 3, 4, "eth1"}});
}

TEST(RankPlan, NumbersRanksNodeByNode) {
  const RankPlan plan = two_nodes();
  ASSERT_EQ(plan.world_size(), 5);
  EXPECT_EQ(plan.slots[1].node, 0);
  EXPECT_EQ(plan.slots[1].local_rank, 1);
  EXPECT_EQ(plan.slots[2].node, 1);
  EXPECT_EQ(plan.slots[2].local_rank, 0);
  EXPECT_EQ(plan.slots[4].local_rank, 2);
}

TEST(RankPlan, RefusesNoNodeAndNoRank) {
  EXPECT_FALSE(plan_ranks({}).has_value());
  const auto empty = plan_ranks({{"a", 1, 1, "lo"}, {"b", 0, 1, "lo"}});
  ASSERT_FALSE(empty.has_value());
  EXPECT_NE(empty.error().message().find("node 1 (b)"), std::string::npos);
}

TEST(RankPlan, GivesTheWholeEnvironment) {
  const RankPlan plan = two_nodes();
  const Environment env =
      rank_environment(plan, plan.slots[3], facts(), {{"HOME", "/h"}}, {});
  const Environment expected = {
      {"HOME", "/h"},
      {"RANK", "3"},
      {"WORLD_SIZE", "5"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "3"},
      {"NODE_RANK", "1"},
      {"GROUP_RANK", "1"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "29512"},
      {"OMP_NUM_THREADS", "1"},
      {"TORCHELASTIC_RUN_ID", "x-1"},
      {"TORCHELASTIC_RESTART_COUNT", "2"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {"GLOO_SOCKET_IFNAME", "eth1"},
      {"NCCL_SOCKET_IFNAME", "eth1"},
      {"LOCKSTEP_RUN_ID", "x-1"},
      {"LOCKSTEP_RUN_DIR", "/runs/x-1"},
      {"LOCKSTEP_EVENTS", "/runs/x-1/ranks/3.jsonl"},
      {"LOCKSTEP_COORDINATOR", "127.0.0.1:4000"},
      {"LOCKSTEP_KEY_FILE", "/runs/x-1/.key"},
      {"LOCKSTEP_GENERATION", "2"},
      {"LOCKSTEP_CHECKPOINTS", "/runs/x-1/checkpoints"}};
  EXPECT_EQ(env, expected);
}

TEST(RankPlan, SharesCoresUnlessTheUserSaidOtherwise) {
  const RankPlan plan = two_nodes();
  const auto threads = [&](const Environment& inherited,
                           const Environment& wanted) {
    return rank_environment(plan, plan.slots[0], facts(), inherited, wanted)
        .at("OMP_NUM_THREADS");
  };
  EXPECT_EQ(threads({}, {}), "4");
  EXPECT_EQ(threads({{"OMP_NUM_THREADS", "7"}}, {}), "7");
  EXPECT_EQ(
      threads({{"OMP_NUM_THREADS", "7"}}, {{"OMP_NUM_THREADS", "2"}}), "2");
}

TEST(RankPlan, StripsTracesOfOtherLaunchers) {
  const Environment clean = without_launchers(
      {{"SLURM_JOB_ID", "1"},
       {"OMPI_COMM_WORLD_RANK", "0"},
       {"PMIX_RANK", "0"},
       {"PMI_SIZE", "2"},
       {"TORCHELASTIC_ERROR_FILE", "x"},
       {"ROLE_RANK", "1"},
       {"RANK", "9"},
       {"LOCKSTEP_RUN_ID", "outer"},
       {"PATH", "/bin"},
       {"LOCKSTEP_TORCH", "/t"},
       {"SLURMPATH", "kept"}});
  const Environment expected = {
      {"PATH", "/bin"}, {"LOCKSTEP_TORCH", "/t"}, {"SLURMPATH", "kept"}};
  EXPECT_EQ(clean, expected);
}

TEST(RankPlan, KnowsReservedNames) {
  EXPECT_TRUE(is_reserved_name("RANK"));
  EXPECT_TRUE(is_reserved_name("LOCKSTEP_KEY_FILE"));
  EXPECT_TRUE(is_reserved_name("TORCHELASTIC_RUN_ID"));
  EXPECT_FALSE(is_reserved_name("MASTER_PORT"));
  EXPECT_FALSE(is_reserved_name("OMP_NUM_THREADS"));
}

}  // namespace
}  // namespace lockstep::launch
