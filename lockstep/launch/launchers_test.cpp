// The pure parts of the launchers mpi and slurm; tests/test_mpi.py and
// tests/test_slurm.py run the real ones.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "lockstep/launch/mpi.h"
#include "lockstep/launch/run_verbs.h"
#include "lockstep/launch/shell.h"
#include "lockstep/launch/slurm.h"
#include "lockstep/launch/slurm_mirror.h"

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
      rsh_agent({{"LOCKSTEP_SSH_OPTIONS", "-F file"}}, {"-o", "Port=2"}),
      HasSubstr("ssh -F file -o Port=2 -o BatchMode=yes"));
  EXPECT_THAT(rsh_agent({}, {}), HasSubstr("ssh   -o BatchMode=yes"));
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

TEST(SlurmTest, WhatSqueueSays) {
  const auto waits = parse_slurm_state("PENDING   2   N/A   BeginTime   ");
  ASSERT_TRUE(waits);
  EXPECT_EQ(waits->state, "PENDING");
  EXPECT_EQ(waits->restarts, 2);
  EXPECT_EQ(waits->reason, "BeginTime");
  EXPECT_TRUE(waits->waits());
  EXPECT_FALSE(waits->has_ended());
  EXPECT_FALSE(parse_slurm_state("RUNNING 0 N/A None")->waits());
  EXPECT_FALSE(parse_slurm_state("COMPLETING 0 N/A None")->has_ended());
  EXPECT_TRUE(parse_slurm_state("NODE_FAIL 0 N/A None")->has_ended());
  EXPECT_FALSE(waits->preempted);
  EXPECT_TRUE(
      parse_slurm_state("RUNNING 0 2026-11-16T01:30:15 None")->preempted);
  EXPECT_FALSE(parse_slurm_state(""));
}

// The head of a first start, restarts 0, wrote this.
RunStateFile word(const std::string& state, int exit_code) {
  RunStateFile written;
  written.launcher = "slurm";
  written.job_id = "7";
  written.state = state;
  written.exit_code = exit_code;
  written.restarts = 0;
  return written;
}

RunStateFile
view(const RunStateFile& written, const std::string& state, int restarts = 0) {
  return slurm_view(written, SlurmState{state, "Why", restarts, false});
}

TEST(SlurmTest, TheHeadsWordCountsUnlessTheJobIsQueuedAgain) {
  EXPECT_EQ(view(word("done", 0), "COMPLETING").state, "done");
  EXPECT_EQ(view(word("done", 0), "PENDING", 1).state, "done");
  EXPECT_EQ(view(word("failed", 1), "FAILED").state, "failed");
  EXPECT_EQ(view(word("failed", 1), "RUNNING").state, "failed");
  EXPECT_EQ(slurm_view(word("failed", 1), {}).state, "failed");
  // By a SIGTERM of Slurm, which says only later what it meant.
  EXPECT_EQ(view(word("stopped", 130), "COMPLETING").state, "running");
  EXPECT_EQ(view(word("stopped", 130), "CANCELLED").state, "stopped");
  const RunStateFile queued = view(word("stopped", 130), "PENDING", 1);
  EXPECT_EQ(queued.state, "queued");
  EXPECT_EQ(queued.detail, "Why");
  EXPECT_EQ(queued.exit_code, 0);
  EXPECT_FALSE(queued.has_ended());
  EXPECT_EQ(view(word("stopped", 130), "RUNNING", 1).state, "running");
  RunStateFile settled = word("failed", 1);
  settled.settled = true;
  EXPECT_EQ(view(settled, "COMPLETING").state, "failed");
}

TEST(SlurmTest, AJobThatEndedWithoutAWord) {
  EXPECT_EQ(view(word("running", 0), "RUNNING").state, "running");
  EXPECT_EQ(view(word("running", 0), "PENDING", 1).state, "queued");
  const RunStateFile lost = view(word("running", 0), "OUT_OF_MEMORY");
  EXPECT_EQ(lost.state, "lost");
  EXPECT_EQ(lost.exit_code, 3);
  EXPECT_THAT(lost.detail, HasSubstr("could say why (OUT_OF_MEMORY)"));
  EXPECT_EQ(view(word("running", 0), "CANCELLED").exit_code, 130);
  EXPECT_EQ(slurm_view(word("running", 0), {}).state, "lost");
  // The first start was ended for a second one that never began.
  const RunStateFile again = view(word("stopped", 130), "FAILED", 1);
  EXPECT_EQ(again.state, "lost");
  EXPECT_THAT(again.detail, HasSubstr("could begin (FAILED)"));
}

TEST(RunVerbsTest, OnlyTheFolderOfANodeIsForgotten) {
  const os::Path base = os::Path(::testing::TempDir()) / "forget";
  std::filesystem::remove_all(base);
  for (const char* name : {"nodes/id/ranks", "runs/id"}) {
    std::filesystem::create_directories(base / name);
  }
  const auto forget = [&](const std::string& directory) {
    return run_verbs()
        .at("forget")(nlohmann::json{{"directory", directory}})
        .has_value();
  };
  for (const std::string& other :
       {std::string("/etc"),
        std::string("nodes/id"),
        (base / "runs/id").string(),
        (base / "nodes/../nodes/..").string(),
        (base / "nodes/").string()}) {
    EXPECT_FALSE(forget(other)) << other;
  }
  EXPECT_TRUE(std::filesystem::exists(base / "runs/id"));
  EXPECT_TRUE(forget((base / "nodes/id").string()));
  EXPECT_FALSE(std::filesystem::exists(base / "nodes/id"));
  EXPECT_TRUE(std::filesystem::exists(base / "nodes"));
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
