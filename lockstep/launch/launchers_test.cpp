// The pure parts of the launchers mpi and slurm; tests/test_mpi.py and
// tests/test_slurm.py run the real ones.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lockstep/launch/mpi.h"
#include "lockstep/launch/shell.h"
#include "lockstep/launch/slurm.h"

namespace lockstep::launch {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

RankPlan plan() {
  return *plan_ranks({{"a", 2, 4, "eth0"}, {"user@b", 3, 4, "eth0"}});
}

TEST(MpiTest, TheHostfileHasTheRanksThatTakePart) {
  EXPECT_EQ(
      mpi_hostfile(plan(), {0, 1, 2, 3, 4}), "a slots=2\nuser@b slots=3\n");
  EXPECT_EQ(mpi_hostfile(plan(), {2, 3}), "user@b slots=2\n");
}

TEST(MpiTest, RootAndHostsHaveTheirOptions) {
  MpiOptions options;
  options.folder = "/run/mpi";
  options.more = {"--mca", "btl", "tcp,self"};
  const auto words = mpirun_arguments(options, 5);
  EXPECT_THAT(words, Contains("/run/mpi/hostfile"));
  EXPECT_THAT(words, Contains("tcp,self"));
  EXPECT_THAT(words, Not(Contains("--allow-run-as-root")));
  options.is_root = options.is_local = true;
  const auto local = mpirun_arguments(options, 5);
  EXPECT_THAT(local, Contains("--allow-run-as-root"));
  EXPECT_THAT(local, Not(Contains("--hostfile")));
}

TEST(MpiTest, TheSshOptionsOfTheUserStandFirst) {
  EXPECT_THAT(
      rsh_agent({{"LOCKSTEP_SSH_OPTIONS", "-F file"}}),
      HasSubstr("ssh -F file -o BatchMode=yes"));
  EXPECT_THAT(rsh_agent({}), HasSubstr("ssh  -o BatchMode=yes"));
}

TEST(SlurmTest, AJobAlwaysHasATimeLimit) {
  Job job;
  job.grace = seconds(60);
  EXPECT_EQ(slurm_limit(job, {}), Duration(kSlurmTimeLimit));
  EXPECT_EQ(slurm_limit(job, hours(2)), Duration(hours(2) + minutes(2)));
  job.max_duration = hours(4);
  EXPECT_EQ(slurm_limit(job, hours(2)), Duration(hours(4) + minutes(2)));
  EXPECT_EQ(slurm_time(seconds(1)), "0-00:01:00");
  EXPECT_EQ(slurm_time(hours(26) + seconds(61)), "1-02:02:00");
}

TEST(SlurmTest, TheScriptAsksForWhatTheJobWants) {
  SlurmBatch batch;
  batch.name = "my run; rm";
  batch.nodes = 3;
  batch.procs = 2;
  batch.limit = hours(1);
  batch.grace = seconds(20);
  batch.config.partition = "gpu";
  batch.config.options = {"--gres=gpu:2"};
  batch.program = "/bin/lockstep";
  batch.folder = "/runs/x y/slurm";
  batch.workdir = "/work";
  const std::string script = batch_script(batch);
  for (const char* line :
       {"#!/bin/bash\n",
        "#SBATCH '--job-name=my run; rm'\n",
        "#SBATCH --nodes=3\n",
        "#SBATCH --ntasks-per-node=2\n",
        "#SBATCH --time=0-01:00:00\n",
        "#SBATCH --signal=B:TERM@30\n",
        "#SBATCH --requeue\n",
        "#SBATCH --partition=gpu\n",
        "#SBATCH --gres=gpu:2\n",
        "exec /bin/lockstep head <'/runs/x y/slurm/orders.json'\n"}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
}

TEST(SlurmTest, StatesThatGoOn) {
  EXPECT_TRUE((SlurmState{"PENDING", "Resources"}).is_queued());
  EXPECT_TRUE((SlurmState{"RUNNING", "None"}).is_queued());
  EXPECT_FALSE((SlurmState{"CANCELLED", "None"}).is_queued());
}

TEST(ShellTest, WordsComeBackFromAShellAsTheyWere) {
  for (const std::string& word :
       {std::string("plain"),
        std::string(),
        std::string("a b"),
        std::string("it's $HOME `x` \"y\" \\")}) {
    EXPECT_EQ(
        *capture({"sh", "-c", "printf %s " + shell_word(word)}, seconds(60)),
        word);
  }
}

TEST(ShellTest, AFailureSaysWhatTheProgramSaid) {
  const auto failed =
      capture({"sh", "-c", "echo no such queue >&2; exit 3"}, seconds(60));
  ASSERT_FALSE(failed.has_value());
  EXPECT_EQ(failed.error().message(), "no such queue");
  EXPECT_THAT(
      capture({"sh", "-c", "exit 3"}, seconds(60)).error().message(),
      HasSubstr("exit code 3"));
  EXPECT_EQ(find_in_path("no-such-program"), "");
  EXPECT_NE(find_in_path("sh"), "");
}

}  // namespace
}  // namespace lockstep::launch
