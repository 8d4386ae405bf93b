#include "lockstep/launch/slurm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <sstream>

#include "lockstep/launch/shell.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;
using std::chrono::minutes;
using std::chrono::seconds;

constexpr Duration kPatience = seconds(30);  // for Slurm's own commands
constexpr Duration kMargin = minutes(1);     // to store results in

Result<std::string> ask(std::vector<std::string> argv) {
  if (find_in_path(argv[0]).empty()) {
    return Error(
               ErrorCode::kNotFound,
               fmt::format("{} is not installed here", argv[0]))
        .with_fix("run it on a login node of the Slurm cluster");
  }
  return capture(argv, kPatience);
}

class SrunStarter : public ShimStarter {
 public:
  explicit SrunStarter(os::Path program) : program_(std::move(program)) {}

  std::string name() const override { return "srun"; }

  Result<os::SpawnOptions> command(
      const RankPlan& plan,
      const std::vector<size_t>& ranks,
      const std::string& shim_spec) override {
    std::set<int> nodes;
    std::vector<std::string> hosts;
    int most = 1;
    for (const size_t rank : ranks) {
      const int node = plan.slots.at(rank).node;
      const PlannedNode& planned = plan.nodes.at(static_cast<size_t>(node));
      most = std::max(most, planned.procs);
      if (nodes.insert(node).second) {
        hosts.push_back(planned.host);
      }
    }
    os::SpawnOptions spawn;
    spawn.argv = {
        "srun",
        fmt::format("--nodes={}", nodes.size()),
        fmt::format("--nodelist={}", fmt::join(hosts, ",")),
        fmt::format("--ntasks={}", ranks.size()),
        fmt::format("--ntasks-per-node={}", most),
        "--distribution=block",
        "--kill-on-bad-exit=0",
        "--input=none",
        "--export=ALL",
        program_.string(),
        "shim",
        "--"};
    spawn.environment = os::environment();
    spawn.environment["LOCKSTEP_SHIM"] = shim_spec;
    return spawn;
  }

  // After the loss of a node Slurm ends or requeues the whole job.
  bool answers(const std::string& /*host*/) override { return true; }

 private:
  const os::Path program_;
};

}  // namespace

Duration slurm_limit(const Job& job, std::optional<Duration> timeout) {
  Duration limit = kSlurmTimeLimit;
  if (job.max_duration) {
    limit = *job.max_duration;
  } else if (timeout) {
    limit = *timeout;
  } else {
    return limit;
  }
  return limit + job.grace + kMargin;
}

std::string slurm_time(Duration limit) {
  const auto whole = std::chrono::ceil<minutes>(limit).count();
  const auto total = std::max<int64_t>(1, whole);
  return fmt::format(
      "{}-{:02}:{:02}:00", total / 1440, total / 60 % 24, total % 60);
}

std::string batch_script(const SlurmBatch& batch) {
  std::string text = "#!/bin/bash\n";
  const auto add = [&](const std::string& option) {
    text += fmt::format("#SBATCH {}\n", shell_word(option));
  };
  add("--job-name=" + batch.name);
  add(fmt::format("--nodes={}", batch.nodes));
  add(fmt::format("--ntasks-per-node={}", batch.procs));
  add("--time=" + slurm_time(batch.limit));
  // The head gets the stop signal early enough to end the ranks in peace.
  add(fmt::format(
      "--signal=B:TERM@{}",
      std::chrono::ceil<seconds>(batch.grace).count() + 10));
  add("--requeue");
  add("--open-mode=append");
  add("--output=" + (batch.folder / "batch.log").string());
  add("--chdir=" + batch.workdir.string());
  if (!batch.config.partition.empty()) {
    add("--partition=" + batch.config.partition);
  }
  for (const std::string& option : batch.config.options) {
    add(option);
  }
  text += fmt::format(
      "exec {} head <{}\n",
      shell_word(batch.program.string()),
      shell_word((batch.folder / "orders.json").string()));
  return text;
}

Result<std::string> submit(const SlurmBatch& batch, const std::string& orders) {
  std::error_code failed;
  fs::create_directories(batch.folder, failed);
  LOCKSTEP_TRY(os::write_private(batch.folder / "orders.json", orders));
  const os::Path script = batch.folder / "job.sh";
  LOCKSTEP_TRY(os::real_files().write_atomic(script, batch_script(batch)));
  LOCKSTEP_ASSIGN(
      std::string id,
      ask({"sbatch", "--parsable", script.string()}).with_context("sbatch"));
  // "12" or "12;cluster", after any warnings.
  id = id.substr(id.rfind('\n') + 1);
  id = id.substr(0, id.find(';'));
  LOCKSTEP_TRY(
      os::real_files().write_atomic(batch.folder / "job_id", id + "\n"));
  return id;
}

bool SlurmState::waits() const {
  return state == "PENDING" || state == "CONFIGURING" ||
         state == "SPECIAL_EXIT" || state.starts_with("REQUEUE");
}

bool SlurmState::has_ended() const {
  constexpr std::array<std::string_view, 10> kEnds = {
      "BOOT_FAIL",
      "CANCELLED",
      "COMPLETED",
      "DEADLINE",
      "FAILED",
      "NODE_FAIL",
      "OUT_OF_MEMORY",
      "PREEMPTED",
      "REVOKED",
      "TIMEOUT"};
  return std::ranges::find(kEnds, state) != kEnds.end();
}

std::optional<SlurmState> parse_slurm_state(const std::string& line) {
  std::istringstream words(line.substr(0, line.find('\n')));
  SlurmState state;
  std::string preempted;  // when, or "N/A"
  words >> state.state >> state.restarts >> preempted;
  state.preempted = !preempted.empty() && preempted != "N/A";
  std::getline(words >> std::ws, state.reason);
  state.reason.erase(state.reason.find_last_not_of(' ') + 1);
  if (state.state.empty()) {
    return {};
  }
  return state;
}

Result<std::optional<SlurmState>> slurm_state(const std::string& job_id) {
  const auto told = ask(
      {"squeue",
       "-h",
       "-j",
       job_id,
       "--states=all",
       "-O",
       "State:32,RestartCnt:16,PreemptTime:32,Reason:80"});
  if (!told) {
    // Slurm forgets a job some minutes after its end.
    if (told.error().message().find("Invalid job id") != std::string::npos) {
      return std::optional<SlurmState>();
    }
    return Error(told.error());
  }
  return parse_slurm_state(*told);
}

Result<void> slurm_stop(const std::string& job_id, bool now) {
  LOCKSTEP_ASSIGN(const auto state, slurm_state(job_id));
  if (!state || state->has_ended()) {
    return {};
  }
  // The head of a preempted job would take the signal for Slurm's, and go on.
  if (!now && state->state == "RUNNING" && !state->preempted) {
    LOCKSTEP_TRY(ask({"scancel", "--batch", "--signal=TERM", job_id}));
    return {};
  }
  LOCKSTEP_TRY(ask({"scancel", job_id}));
  return {};
}

Result<void> slurm_requeue(const std::string& job_id) {
  LOCKSTEP_TRY(ask({"scontrol", "requeue", job_id}));
  return {};
}

Result<std::vector<std::string>> allocated_hosts() {
  const auto variables = os::environment();
  const auto list = variables.find("SLURM_JOB_NODELIST");
  if (list == variables.end()) {
    return Error(
        ErrorCode::kUnavailable,
        "SLURM_JOB_NODELIST is not set: this is no Slurm job");
  }
  LOCKSTEP_ASSIGN(
      const std::string text,
      ask({"scontrol", "show", "hostnames", list->second}));
  std::vector<std::string> hosts;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\n', at), text.size());
    hosts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return hosts;
}

int slurm_restarts() {
  const char* text = std::getenv("SLURM_RESTART_COUNT");
  return text == nullptr ? 0 : std::max(0, std::atoi(text));
}

std::string slurm_job() {
  const char* text = std::getenv("SLURM_JOB_ID");
  return text == nullptr ? "" : text;
}

std::unique_ptr<ShimStarter> make_srun_starter(os::Path program) {
  return std::make_unique<SrunStarter>(std::move(program));
}

}  // namespace lockstep::launch
