#include "lockstep/train/rank_environment.h"

#include <gtest/gtest.h>

namespace lockstep::train {
namespace {

TEST(RankEnvironment, IsAloneWithNothing) {
  const auto result = read_rank_environment({}).value();
  EXPECT_EQ(result.launcher, "alone");
  EXPECT_EQ(result.world_size, 1);
}

TEST(RankEnvironment, UnderstandsEachLauncher) {
  const auto torchrun =
      read_rank_environment({{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"MASTER_ADDR", "a"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "x"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}})
          .value();
  EXPECT_EQ(torchrun.launcher, "torchrun");
  EXPECT_EQ(torchrun.rank, 3);
  EXPECT_EQ(torchrun.local_world_size, 2);
  EXPECT_TRUE(torchrun.agent_store);

  const auto mpi = read_rank_environment({{"OMPI_COMM_WORLD_RANK", "1"},
                                          {"OMPI_COMM_WORLD_SIZE", "2"},
                                          {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}})
                       .value();
  EXPECT_EQ(mpi.launcher, "mpirun");
  EXPECT_EQ(mpi.rank, 1);
  EXPECT_EQ(mpi.world_size, 2);

  const auto slurm = read_rank_environment({{"SLURM_PROCID", "1"},
                                            {"SLURM_NTASKS", "2"},
                                            {"SLURM_STEP_ID", "0"},
                                            {"MASTER_ADDR", "a"},
                                            {"MASTER_PORT", "1"}})
                         .value();
  EXPECT_EQ(slurm.launcher, "srun");

  const auto own =
      read_rank_environment({{"RANK", "0"},
                             {"WORLD_SIZE", "2"},
                             {"LOCKSTEP_RUN_ID", "r"},
                             {"LOCKSTEP_COORDINATOR", "127.0.0.1:1"},
                             {"LOCKSTEP_GENERATION", "2"}})
          .value();
  EXPECT_EQ(own.launcher, "lockstep");
  EXPECT_EQ(own.generation, 2);
}

// What srun sets by itself, without MASTER_ADDR or --ntasks-per-node.
TEST(RankEnvironment, SrunAloneIsEnough) {
  const auto read = [](const std::string& nodes, const std::string& tasks) {
    return read_rank_environment(
        {{"SLURM_PROCID", "5"},
         {"SLURM_NTASKS", "11"},
         {"SLURM_LOCALID", "1"},
         {"SLURM_NODEID", "1"},
         {"SLURM_JOB_ID", "12345678"},
         {"SLURM_STEP_ID", "2"},
         {"SLURM_STEP_NODELIST", nodes},
         {"SLURM_STEP_TASKS_PER_NODE", tasks}});
  };
  const auto made = read("gpu[03-07,9]-ib,login", "4(x2),3").value();
  EXPECT_EQ(made.launcher, "srun");
  EXPECT_EQ(made.local_world_size, 4);
  EXPECT_EQ(made.master_host, "gpu03-ib");
  EXPECT_GE(made.master_port, 20000);
  EXPECT_LT(made.master_port, 30000);
  EXPECT_EQ(made.run_id, "slurm-12345678.2");
  EXPECT_EQ(read("a,b", "4,7").value().master_host, "a");
  EXPECT_EQ(read("a,b", "4,7").value().local_world_size, 7);
  EXPECT_EQ(read("n[1,3]", "1,10").value().master_host, "n1");
  EXPECT_EQ(read("one", "2,11").value().master_host, "127.0.0.1");
  EXPECT_FALSE(read("", "4,7")) << "nobody says where rank 0 is";
}

TEST(RankEnvironment, ASlurmShellAloneIsNotARank) {
  EXPECT_EQ(
      read_rank_environment({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}})
          .value()
          .launcher,
      "alone");
}

TEST(RankEnvironment, NamesTheVariableThatIsWrong) {
  const auto error = [](std::map<std::string, std::string> environment) {
    return read_rank_environment(environment).error().to_string();
  };
  EXPECT_NE(
      error({{"RANK", "x"}, {"WORLD_SIZE", "2"}}).find("RANK='x'"),
      std::string::npos);
  EXPECT_NE(
      error({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("WORLD_SIZE=2"),
      std::string::npos);
  EXPECT_NE(error({{"RANK", "0"}}).find("WORLD_SIZE"), std::string::npos);
  EXPECT_NE(error({{"WORLD_SIZE", "2"}}).find("RANK"), std::string::npos);
  EXPECT_NE(
      error({{"RANK", ""}, {"WORLD_SIZE", "2"}}).find("RANK is empty"),
      std::string::npos);
  EXPECT_NE(
      error({{"RANK", "0"}, {"WORLD_SIZE", ""}}).find("WORLD_SIZE is empty"),
      std::string::npos);
  EXPECT_TRUE(read_rank_environment({{"WORLD_SIZE", "1"}}));
  EXPECT_NE(
      error({{"RANK", "0"}, {"WORLD_SIZE", "2"}}).find("MASTER_ADDR"),
      std::string::npos);
  EXPECT_NE(
      error({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "99999"}})
          .find("MASTER_PORT"),
      std::string::npos);
}

}  // namespace
}  // namespace lockstep::train
