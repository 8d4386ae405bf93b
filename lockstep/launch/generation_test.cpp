#include "lockstep/launch/generation.h"

#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

class GenerationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto job = program_job({"prog", "x"}, {}, {});
    ASSERT_TRUE(job.has_value());
    job_ = *job;
    std::vector<PlannedNode> nodes;
    std::vector<NodePlace> places;
    for (const char* host : {"a", "b", "c"}) {
      nodes.push_back(
          {.host = host, .procs = 2, .cores = 8, .interface = "eth0"});
      NodePlace place;
      place.workdir = "/work";
      place.run_directory = std::string("/runs/") + host;
      place.folder = std::string("/nodes/") + host;
      place.key_file = place.folder / ".key";
      place.head_address = "10.0.0.1";
      place.inherited = {{"PATH", "/bin"}, {"SLURM_X", "1"}};
      places.push_back(place);
    }
    whole_ = whole_generation(*plan_ranks(nodes), places, {});
    facts_.run_id = "id";
    facts_.master_port = 1000;
    facts_.coordinator_port = 2000;
  }
  Job job_;
  Generation whole_;
  StartFacts facts_;
};

TEST_F(GenerationTest, GivesEachNodeItsRanksAndPaths) {
  auto all = plan_generation(whole_, {0, 1, 2}, 0);
  ASSERT_TRUE(all.has_value());
  auto starts = make_starts(job_, *all, facts_);
  ASSERT_TRUE(starts.has_value());
  ASSERT_EQ(starts->size(), 3);
  const RankCommand& last = starts->at(2).commands.at(1);
  EXPECT_EQ(last.rank, 5);
  EXPECT_EQ(last.log, "/nodes/c/ranks/5.log");
  EXPECT_EQ(last.environment.at("LOCKSTEP_EVENTS"), last.events.string());
  EXPECT_EQ(last.environment.at("LOCKSTEP_RUN_DIR"), "/runs/c");
  EXPECT_EQ(last.environment.at("LOCKSTEP_COORDINATOR"), "10.0.0.1:2000");
  EXPECT_EQ(last.environment.at("MASTER_ADDR"), "10.0.0.1");
  EXPECT_EQ(last.environment.at("LOCKSTEP_KEY_FILE"), "/nodes/c/.key");
  EXPECT_EQ(last.environment.at("PATH"), "/bin");
  EXPECT_FALSE(last.environment.contains("SLURM_X"));
  EXPECT_TRUE(starts->at(0).commands.at(0).show);
  EXPECT_FALSE(last.show);
}

TEST_F(GenerationTest, TellsTheStopSignalInOneForm) {
  auto all = plan_generation(whole_, {0, 1, 2}, 0);
  ASSERT_TRUE(all.has_value());
  for (const char* text : {"SIGUSR1", "USR1", "10"}) {
    job_.stop_signal = text;
    const auto starts = make_starts(job_, *all, facts_);
    ASSERT_TRUE(starts.has_value());
    const auto& environment = starts->at(0).commands.at(0).environment;
    EXPECT_EQ(environment.at("LOCKSTEP_STOP_SIGNAL"), "SIGUSR1") << text;
  }
}

TEST_F(GenerationTest, LeavesOutWhoIsLostAndTakesBackWhoReturned) {
  auto fewer = plan_generation(whole_, {0, 2}, 1);
  ASSERT_TRUE(fewer.has_value());
  EXPECT_EQ(fewer->plan.world_size(), 4);
  EXPECT_EQ(fewer->plan.nodes.at(1).host, "c");
  EXPECT_EQ(fewer->members, (std::vector<size_t>{0, 0, 2, 2}));
  auto starts = make_starts(job_, *fewer, facts_);
  ASSERT_TRUE(starts.has_value());
  const RankCommand& moved = starts->at(2).commands.at(0);
  EXPECT_EQ(moved.environment.at("RANK"), "2");
  EXPECT_EQ(moved.environment.at("NODE_RANK"), "1");
  EXPECT_EQ(moved.environment.at("WORLD_SIZE"), "4");
  EXPECT_EQ(moved.environment.at("LOCKSTEP_GENERATION"), "1");
  EXPECT_EQ(starts->at(2).generation, 1);
  EXPECT_EQ(plan_generation(whole_, {2, 1, 0}, 2)->plan.world_size(), 6);
}

TEST_F(GenerationTest, NeedsTheFirstNode) {
  auto headless = plan_generation(whole_, {1, 2}, 1);
  ASSERT_FALSE(headless.has_value());
  EXPECT_EQ(headless.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(headless.error().message().find("node a"), std::string::npos);
}

TEST_F(GenerationTest, TakesOneMemberARank) {
  const Generation shims =
      whole_generation(whole_.plan, whole_.places, {0, 1, 2, 3, 4, 5});
  auto fewer = plan_generation(shims, {0, 1, 2, 5}, 1);
  ASSERT_TRUE(fewer.has_value());
  EXPECT_EQ(fewer->members, (std::vector<size_t>{0, 1, 2, 5}));
  EXPECT_EQ(fewer->plan.nodes.at(1).procs, 1);
}

TEST_F(GenerationTest, LetsANodeHaveItsOwnVariables) {
  job_.envs = {{"A", "job"}, {"B", "job"}};
  whole_.places[1].envs = {{"A", "node"}};
  auto starts =
      make_starts(job_, *plan_generation(whole_, {0, 1, 2}, 0), facts_);
  ASSERT_TRUE(starts.has_value());
  EXPECT_EQ(starts->at(0).commands[0].environment.at("A"), "job");
  EXPECT_EQ(starts->at(1).commands[0].environment.at("A"), "node");
  EXPECT_EQ(starts->at(1).commands[0].environment.at("B"), "job");
}

}  // namespace
}  // namespace lockstep::launch
