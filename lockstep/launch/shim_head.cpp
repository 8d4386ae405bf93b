#include "lockstep/launch/shim_head.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "lockstep/launch/mpi.h"
#include "lockstep/launch/run_verbs.h"
#include "lockstep/launch/slurm.h"
#include "lockstep/os/socket.h"
#include "lockstep/reach/session.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::seconds;

// The ranks of mpirun run on other hosts than the head.
bool is_elsewhere(const HeadSpec& spec) {
  return spec.launcher == "mpi" && !spec.nodes.front().program.empty();
}

// Of the run on a node: ranks write their logs and events below it.
os::Path folder_there(const HeadSpec& spec) {
  return spec.nodes.front().folder;
}

std::string host_of(const std::string& address) {
  const auto parsed = os::parse_address(address);
  return parsed ? parsed->host : address;
}

Result<std::unique_ptr<ShimStarter>> make_starter(
    const HeadSpec& spec,
    const os::Path& own_program,
    const record::RunDirectory& run,
    const Job& job) {
  if (spec.launcher == "slurm") {
    return make_srun_starter(own_program);
  }
  MpiOptions options;
  options.folder = run.path() / "mpi";
  options.is_local = !is_elsewhere(spec);
  options.program = options.is_local ? own_program : spec.nodes.front().program;
  options.more = job.mpi.options;
  options.is_root = ::geteuid() == 0;
  options.agent = rsh_agent(os::environment(), job.resources.ssh_options);
  return make_mpi_starter(std::move(options));
}

Result<void> fetch_file(
    reach::Session& session,
    const std::string& directory,
    const std::string& name,
    const os::Path& to) {
  constexpr Duration kAnswer = seconds(60);
  std::error_code ignored;
  fs::create_directories(to.parent_path(), ignored);
  const os::Path temporary =
      to.parent_path() / ("." + to.filename().string() + ".tmp-fetch");
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  uint64_t offset = 0;
  while (true) {
    LOCKSTEP_ASSIGN(
        const json piece,
        session.call(
            "fetch",
            {{"directory", directory}, {"name", name}, {"offset", offset}},
            os::Deadline::after(kAnswer)));
    const auto& data = piece.at("data").get_binary();
    file.write(
        reinterpret_cast<const char*>(data.data()),
        static_cast<std::streamsize>(data.size()));
    offset += data.size();
    if (data.empty() || offset >= piece.at("size").get<uint64_t>()) {
      break;
    }
  }
  file.close();
  if (!file || ::rename(temporary.c_str(), to.c_str()) != 0) {
    return os_error(fmt::format("cannot write {}", to.string()), errno);
  }
  return {};
}

// Slurm signals all processes of a job: a rank may end, also with 0, before the
// head is told.
bool fell_by_sigterm(const RunOutcome& outcome) {
  constexpr int kByShell = 128 + SIGTERM;
  return outcome.failure && (outcome.failure->status.signal == SIGTERM ||
                             outcome.failure->status.code == kByShell);
}

// Also when a rank noticed it, and nobody else. A first start that fails may
// fail for ever; a later one meets nodes that Slurm has not missed yet.
bool lost_a_node(const Result<RunOutcome>& outcome, const RunStateFile& state) {
  constexpr int kMostRestarts = 8;
  if (!outcome || state.restarts >= kMostRestarts) {
    return false;
  }
  if (outcome->failure) {
    return outcome->failure->lost ||
           (outcome->failure->consequence && state.hosts.size() > 1);
  }
  return outcome->end == RunEnd::kLost && state.restarts > 0;
}

// With a GraceTime Slurm asks the ranks to end and leaves the rest to them. As
// for Slurm itself, who ends with 0 within that time is done.
bool made_room(const Result<RunOutcome>& outcome, const SlurmState& told) {
  return told.preempted && outcome && outcome->end != RunEnd::kDone;
}

}  // namespace

bool uses_shims(const HeadSpec& spec) {
  return spec.launcher == "mpi" || spec.launcher == "slurm";
}

Result<void> take_allocation(HeadSpec& spec) {
  if (spec.launcher != "slurm") {
    return {};
  }
  LOCKSTEP_ASSIGN(const auto hosts, allocated_hosts());
  const HeadNode like = spec.nodes.front();
  spec.nodes.clear();
  for (const std::string& host : hosts) {
    spec.nodes.push_back(like);
    spec.nodes.back().host = host;
  }
  return {};
}

EarlierStarts earlier_starts(
    const HeadSpec& spec,
    const record::RunDirectory& run) {
  EarlierStarts earlier;
  const auto last = read_run_state(run);
  if (spec.launcher != "slurm" || slurm_restarts() == 0 || !last || !*last) {
    return earlier;
  }
  earlier.generations = std::max(slurm_restarts(), (*last)->generation + 1);
  // A head that was killed wrote no end; its last event tells how long it was.
  double end = (*last)->ended;
  struct stat facts{};
  if (end == 0 && ::stat(run.events().c_str(), &facts) == 0) {
    end = static_cast<double>(facts.st_mtim.tv_sec) +
          static_cast<double>(facts.st_mtim.tv_nsec) * 1e-9;
  }
  if ((*last)->restarts >= 0) {
    earlier.used = from_seconds(std::max(0.0, end - (*last)->started));
  }
  return earlier;
}

Result<ShimRun> start_shims(
    const HeadSpec& spec,
    const RankPlan& plan,
    const os::Path& own_program,
    const record::RunDirectory& run,
    const std::vector<std::string>& own_addresses,
    const std::function<bool()>& interrupted) {
  LOCKSTEP_ASSIGN(
      const Job job, parse_job(spec.job, "the head's job", spec.secrets));
  ShimOptions options;
  options.run_id = spec.run_id;
  from_hex(spec.key, options.key);
  options.head_addresses = own_addresses;
  options.folder = folder_there(spec);
  options.hub.first_port = spec.first_port;
  options.hub.last_port = spec.last_port;
  options.patience = spec.patience;
  options.log = run.path() / "launcher.log";
  options.interrupted = interrupted;
  ShimRun shims;
  LOCKSTEP_ASSIGN(shims.starter, make_starter(spec, own_program, run, job));
  LOCKSTEP_ASSIGN(
      shims.group,
      ShimGroup::open(*shims.starter, plan, options, run, os::real_clock()));
  return shims;
}

void fill_shim_places(
    const HeadSpec& spec,
    const ShimGroup& group,
    const record::RunDirectory& run,
    RunRequest& request) {
  request.members.resize(request.plan.slots.size());
  std::iota(request.members.begin(), request.members.end(), size_t{0});
  request.places.clear();
  const Join* first = group.joined(0);
  for (const RankSlot& slot : request.plan.slots) {
    if (slot.local_rank != 0) {
      continue;
    }
    const Join* joined = group.joined(static_cast<size_t>(slot.rank));
    const HeadNode& told = spec.nodes.at(static_cast<size_t>(slot.node));
    PlannedNode& planned =
        request.plan.nodes.at(static_cast<size_t>(slot.node));
    planned.cores = joined->cores;
    planned.interface = joined->interface;
    NodePlace place;
    place.workdir = told.workdir;
    place.trainer = told.trainer;
    place.folder = folder_there(spec);
    place.run_directory = is_elsewhere(spec) ? place.folder : run.path();
    place.key_file = place.folder / ".key";  // a shim says its own
    place.envs = told.envs;
    place.head_address = host_of(joined->head_address);
    place.master_address = first->own_address;
    request.places.push_back(std::move(place));
  }
}

Result<void> run_setup_here(
    const HeadSpec& spec,
    const Job& job,
    const record::RunDirectory& run) {
  if (job.setup.empty() || is_elsewhere(spec)) {
    return {};
  }
  os::SpawnOptions options;
  options.argv = {"bash", "-c", job.setup};
  options.environment = without_launchers(os::environment());
  for (const auto* wanted : {&job.envs, &job.secret_values}) {
    for (const auto& [name, value] : *wanted) {
      options.environment[name] = value;
    }
  }
  options.directory = spec.nodes.front().workdir;
  options.output = run.path() / "ranks" / "setup.log";
  options.die_with_parent = true;
  LOCKSTEP_ASSIGN(auto process, os::real_processes().spawn(options));
  LOCKSTEP_ASSIGN(
      const os::ExitStatus status, process->wait(os::Deadline::never()));
  if (!status.ok()) {
    return Error(
        ErrorCode::kAborted,
        fmt::format(
            "setup failed: {}; see {}",
            status.to_string(),
            options.output->string()));
  }
  return {};
}

Result<void> fetch_outputs(
    const HeadSpec& spec,
    const Job& job,
    const os::Path& own_program,
    const record::RunDirectory& run) {
  if (!is_elsewhere(spec)) {
    return {};
  }
  const std::string directory = folder_there(spec).string();
  reach::ReachOptions options;
  options.program = own_program;
  options.ssh_options = job.resources.ssh_options;
  LOCKSTEP_ASSIGN(
      const auto session, reach::reach(spec.nodes.front().host, options));
  const auto answer = session->call(
      "files", {{"directory", directory}}, os::Deadline::after(seconds(60)));
  if (!answer && answer.error().code() == ErrorCode::kNotFound) {
    return {};  // its shim found nothing in it, and removed it
  }
  LOCKSTEP_TRY(answer);
  for (const json& file : answer->at("files")) {
    const std::string name = file.at("name").get<std::string>();
    const bool is_ours = name.starts_with("ranks/") ||
                         name.starts_with("python/") ||
                         name.starts_with("image-");
    if (is_plain_name(name) && !is_ours) {
      LOCKSTEP_TRY(fetch_file(*session, directory, name, run.path() / name));
    }
  }
  LOCKSTEP_TRY(session->call(
      "forget", {{"directory", directory}}, os::Deadline::after(seconds(60))));
  return {};
}

bool goes_on_later(
    Result<RunOutcome>& outcome,
    RunStateFile& state,
    Console& console) {
  if (state.launcher != "slurm") {
    return false;
  }
  const auto told = slurm_state(state.job_id);
  if (!told || !*told) {
    return false;
  }
  if ((*told)->restarts > state.restarts || (*told)->waits()) {
    console.say("lockstep: Slurm queued the job again");
    return true;
  }
  // Completing: cancelled or queued again, which Slurm does not tell yet.
  state.settled = (*told)->state == "RUNNING";
  if (!state.settled && outcome &&
      (outcome->end == RunEnd::kDone || fell_by_sigterm(*outcome))) {
    outcome->end = RunEnd::kInterrupted;
    outcome->detail = "Slurm ended the job";
    outcome->failure.reset();
  }
  const bool preempted = made_room(outcome, **told);
  if (!state.settled || !(preempted || lost_a_node(outcome, state))) {
    return false;
  }
  if (const auto queued = slurm_requeue(state.job_id); !queued) {
    console.say(
        "lockstep: Slurm does not queue the job again: " +
        queued.error().to_string());
    return false;
  }
  console.say(
      fmt::format(
          "lockstep: job {} {}is queued again, to go on from the last "
          "checkpoint{}",
          state.job_id,
          preempted ? "was preempted and " : "",
          preempted ? "" : " on nodes that answer"));
  return true;
}

}  // namespace lockstep::launch
