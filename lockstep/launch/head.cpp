#include "lockstep/launch/head.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "lockstep/base/id.h"
#include "lockstep/base/log.h"
#include "lockstep/launch/companion.h"
#include "lockstep/launch/console_file.h"
#include "lockstep/launch/hub.h"
#include "lockstep/launch/launcher.h"
#include "lockstep/launch/run_record.h"
#include "lockstep/launch/shim_head.h"
#include "lockstep/launch/slurm.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/os/process.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string read_all(int descriptor) {
  std::string text;
  char block[1 << 16];
  while (true) {
    const ssize_t size = ::read(descriptor, block, sizeof block);
    if (size <= 0) {
      return text;
    }
    text.append(block, static_cast<size_t>(size));
  }
}

// Every address under which this machine may be reached; its loopback last,
// for a run whose only node is the head.
std::vector<std::string> own_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) {
    return {"127.0.0.1"};
  }
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != AF_INET ||
        (one->ifa_flags & IFF_UP) == 0 ||
        (one->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    char text[INET_ADDRSTRLEN];
    const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
    if (::inet_ntop(AF_INET, &address->sin_addr, text, sizeof text) !=
        nullptr) {
      addresses.emplace_back(text);
    }
  }
  ::freeifaddrs(all);
  addresses.emplace_back("127.0.0.1");
  return addresses;
}

// One line to whoever started us; false when nobody waits for it.
bool tell(const std::string& line) {
  const std::string text = line + "\n";
  return ::write(STDOUT_FILENO, text.data(), text.size()) > 0;
}

// Nobody holds our standard streams from here on.
void leave_streams(const record::RunDirectory& run) {
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int log = ::open(
      (run.path() / "head.log").c_str(),
      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
      0644);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(nothing, STDOUT_FILENO);
  ::dup2(log >= 0 ? log : nothing, STDERR_FILENO);
}

class Head {
 public:
  Head(
      os::Path own_program,
      HeadSpec spec,
      record::RunDirectory run,
      StopSignals& signals)
      : own_program_(std::move(own_program)),
        spec_(std::move(spec)),
        run_(std::move(run)),
        signals_(signals) {}

  // Up to the moment when a follower finds everything it looks for.
  Result<void> begin() {
    from_hex(spec_.key, key_);
    LOCKSTEP_TRY(read_job());
    request_.started = os::real_clock().now() - spec_.before;
    request_.terms = spec_.terms;
    request_.replacement = spec_.replacement;
    for (const HeadNode& node : spec_.nodes) {
      request_.spot.push_back(node.spot);
    }
    request_.retries = spec_.retries;
    request_.timeout = spec_.timeout;
    request_.price_per_hour = spec_.price_per_hour;
    request_.program = spec_.program;
    request_.first_port = spec_.first_port;
    request_.last_port = spec_.last_port;
    LOCKSTEP_TRY(begin_nodes());
    LOCKSTEP_ASSIGN(console_, ConsoleFile::open(run_, os::real_clock()));
    state_ = first_state(run_, request_);
    state_.launcher = spec_.launcher;
    state_.command = spec_.command;
    state_.price_source = spec_.price_source;
    state_.outputs = spec_.outputs;
    state_.started -= to_seconds(spec_.before);
    if (spec_.launcher == "slurm") {
      state_.job_id = slurm_job();
      state_.restarts = slurm_restarts();
      state_.generation = request_.first_generation;
      state_.started -= to_seconds(os::real_clock().now() - request_.started);
    }
    for (const HeadNode& node : spec_.nodes) {
      state_.hosts.push_back(node.host);
    }
    return write_run_state(run_, state_);
  }

  std::string listening() const {
    return fmt::format(
        "listening {} {}",
        hub_ == nullptr ? 0 : hub_->port(),
        fmt::join(own_addresses(), " "));
  }

  // Nobody started any agent.
  void give_up() {
    RunOutcome outcome;
    outcome.end = RunEnd::kInterrupted;
    outcome.detail = "interrupted before the ranks started";
    end_record(run_, request_.job, outcome, state_);
  }

  int run_to_end() {
    Companion uploading(own_program_, "uploader", run_.path(), spec_.uploader);
    Result<RunOutcome> outcome = watch_renting();
    if (hub_ != nullptr) {
      constexpr Duration kFarewell = seconds(5);
      hub_->close(os::Deadline::after(kFarewell));
    }
    if (!outcome) {
      console_->alarm(
          redact(request_.job, "lockstep: " + outcome.error().to_string()));
    } else if (!outcome->failure && outcome->end != RunEnd::kDone) {
      console_->alarm(redact(request_.job, "lockstep: " + outcome->detail));
    }
    if (goes_on_later(outcome, state_, *console_)) {
      return 0;  // no end to write: the next head does
    }
    end_record(run_, request_.job, outcome, state_);
    // Nobody may be there to fetch it.
    constexpr Duration kLastRound = std::chrono::hours(1);
    if (!uploading.finish(os::Deadline::after(kLastRound))) {
      log_warning("not everything is stored: uploader.log tells why");
    }
    return state_.exit_code;
  }

 private:
  // Nothing is rented any more once the run has ended.
  Result<RunOutcome> watch_renting() {
    Companion renting(own_program_, "renter", run_.path(), renter_orders());
    Result<RunOutcome> outcome = watch();
    constexpr Duration kGivenBack = seconds(60);
    if (!renting.finish(os::Deadline::after(kGivenBack))) {
      log_warning("the renter did not end well: renter.log tells why");
    }
    return outcome;
  }

  std::string renter_orders() const {
    if (hub_ == nullptr) {
      return "";
    }
    std::vector<std::string> addresses;
    for (const std::string& address : own_addresses()) {
      if (!address.starts_with("127.")) {
        addresses.push_back(fmt::format("{}:{}", address, hub_->port()));
      }
    }
    return complete_renter_orders(spec_, request_.job.setup, addresses);
  }

  Result<void> read_job() {
    LOCKSTEP_ASSIGN(
        request_.job, parse_job(spec_.job, "the head's job", spec_.secrets));
    if (os::real_files().exists(run_.job())) {
      return {};  // started again by a batch system
    }
    return record_job(run_, request_.job);
  }

  Result<void> begin_nodes() {
    if (spec_.launcher == "local") {
      return begin_local();
    }
    LOCKSTEP_TRY(take_allocation(spec_));
    LOCKSTEP_TRY(plan_nodes());
    if (uses_shims(spec_)) {
      const EarlierStarts earlier = earlier_starts(spec_, run_);
      request_.first_generation = earlier.generations;
      request_.started -= earlier.used;  // caps and timeout count all of it
      request_.restarts_after_loss = spec_.launcher != "slurm";
      return {};
    }
    return begin_hub();
  }

  Result<void> begin_local() {
    launcher_ = make_local_launcher(own_program_);
    LOCKSTEP_ASSIGN(auto nodes, launcher_->nodes(spec_.nodes.front().procs));
    LOCKSTEP_ASSIGN(request_.plan, plan_ranks(std::move(nodes)));
    request_.trainer = spec_.nodes.front().trainer;
    return {};
  }

  Result<void> plan_nodes() {
    std::vector<PlannedNode> nodes;
    for (const HeadNode& node : spec_.nodes) {
      PlannedNode planned;
      planned.host = node.host;
      planned.procs = node.procs;
      nodes.push_back(std::move(planned));
    }
    LOCKSTEP_ASSIGN(request_.plan, plan_ranks(std::move(nodes)));
    return {};
  }

  Result<void> begin_hub() {
    HubOptions options;
    options.first_port = spec_.first_port;
    options.last_port = spec_.last_port;
    options.nodes = spec_.nodes.size();
    for (const HeadNode& node : spec_.nodes) {
      options.hosts.push_back(node.host);  // as the user knows them
    }
    LOCKSTEP_ASSIGN(hub_, Hub::open(options, key_, run_, os::real_clock()));
    return {};
  }

  // mpirun or srun starts the ranks, each under a shim.
  Result<RunOutcome> watch_shims() {
    const auto early = [&](RunEnd end, const Error& error) {
      RunOutcome outcome;
      outcome.end = end;
      outcome.detail = error.to_string();
      outcome.elapsed = os::real_clock().now() - request_.started;
      return outcome;
    };
    if (const auto ready = run_setup_here(spec_, request_.job, run_); !ready) {
      return early(RunEnd::kFailed, ready.error());
    }
    auto shims = start_shims(
        spec_, request_.plan, own_program_, run_, own_addresses(), [&] {
          return signals_.take() != 0;
        });
    if (!shims) {
      return early(
          shims.error().code() == ErrorCode::kInterrupted ? RunEnd::kInterrupted
                                                          : RunEnd::kLost,
          shims.error());
    }
    fill_shim_places(spec_, *shims->group, run_, request_);
    auto outcome = supervise(
        *shims->group, request_, run_, state_, key_, signals_, *console_);
    constexpr Duration kFarewell = seconds(5);
    shims->group->close(kFarewell);
    if (const auto fetched =
            fetch_outputs(spec_, request_.job, own_program_, run_);
        !fetched) {
      console_->say(
          "lockstep: what rank 0 left is still on its host: " +
          fetched.error().to_string());
    }
    return outcome;
  }

  Result<RunOutcome> watch() {
    if (uses_shims(spec_)) {
      return watch_shims();
    }
    if (hub_ == nullptr) {
      return supervise(*launcher_, request_, run_, state_, signals_, *console_);
    }
    if (auto early = gather()) {
      return std::move(*early);
    }
    fill_places();
    return supervise(*hub_, request_, run_, state_, key_, signals_, *console_);
  }

  // An outcome when the run is over before it began.
  std::optional<RunOutcome> gather() {
    const auto deadline = os::Deadline::after(spec_.patience);
    constexpr Duration kSlice = milliseconds(100);
    while (true) {
      const auto gathered = hub_->gather(os::Deadline::after(kSlice));
      if (gathered) {
        return {};
      }
      RunOutcome outcome;
      outcome.elapsed = os::real_clock().now() - request_.started;
      if (signals_.take() != 0) {
        outcome.end = RunEnd::kInterrupted;
        outcome.detail = "interrupted before the ranks started";
        return outcome;
      }
      if (deadline.passed()) {
        outcome.end = RunEnd::kLost;
        outcome.detail = missing();
        return outcome;
      }
    }
  }

  std::string missing() const {
    std::vector<std::string> hosts;
    for (size_t node = 0; node < spec_.nodes.size(); ++node) {
      if (hub_->joined(node) == nullptr) {
        hosts.push_back(spec_.nodes[node].host);
      }
    }
    return fmt::format(
        "{} did not join within {}; check that it reaches port {} of {}",
        fmt::join(hosts, ", "),
        format_duration(spec_.patience),
        hub_->port(),
        spec_.nodes.front().host);
  }

  // What nodes told when they joined completes plan and places.
  void fill_places() {
    const std::string first = address_for_all();
    for (size_t node = 0; node < spec_.nodes.size(); ++node) {
      const Join* joined = hub_->joined(node);
      const HeadNode& told = spec_.nodes[node];
      PlannedNode& planned = request_.plan.nodes[node];
      planned.cores = joined->cores;
      planned.interface = joined->interface;
      NodePlace place;
      place.workdir = told.workdir;
      place.trainer = told.trainer;
      place.folder = told.folder;
      place.run_directory = node == 0 ? run_.path() : told.folder;
      place.key_file = told.folder / ".key";
      place.inherited = told.environment;
      place.envs = told.envs;
      place.head_address = node == 0 ? first : host_of(joined->head_address);
      request_.places.push_back(std::move(place));
    }
  }

  static std::string host_of(const std::string& address) {
    const auto parsed = os::parse_address(address);
    return parsed ? parsed->host : address;
  }

  // The head's own ranks use the address that other nodes reached.
  std::string address_for_all() const {
    return host_of(hub_->joined(spec_.nodes.size() > 1 ? 1 : 0)->head_address);
  }

  os::Path own_program_;
  HeadSpec spec_;
  record::RunDirectory run_;
  StopSignals& signals_;
  Key key_{};
  RunRequest request_;
  RunStateFile state_;
  std::unique_ptr<Launcher> launcher_;
  std::unique_ptr<Hub> hub_;
  std::unique_ptr<ConsoleFile> console_;
};

}  // namespace

int head_main(const os::Path& own_program) {
  // Nobody's terminal is ours: only a stop that was meant is taken.
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  StopSignals signals;
  const auto fail = [](const Error& error) {
    tell("failed: " + error.to_string());
    return 3;
  };
  auto spec = parse_head_spec(read_all(STDIN_FILENO));
  if (!spec) {
    return fail(spec.error());
  }
  auto run = record::RunDirectory::open(spec->runs_dir / spec->run_id);
  if (!run) {
    return fail(run.error());
  }
  init_log({});
  Head head(own_program, std::move(*spec), *run, signals);
  if (const auto begun = head.begin(); !begun) {
    return fail(begun.error());
  }
  if (!tell(head.listening())) {
    head.give_up();
    return 3;
  }
  leave_streams(*run);
  return head.run_to_end();
}

}  // namespace lockstep::launch
