#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/id.h"
#include "lockstep/commands/check_train.h"
#include "lockstep/commands/far_nodes.h"
#include "lockstep/commands/interruptible.h"
#include "lockstep/commands/mounts.h"
#include "lockstep/commands/outputs.h"
#include "lockstep/commands/remote.h"
#include "lockstep/commands/renter.h"
#include "lockstep/commands/renting_beat.h"
#include "lockstep/commands/replacements.h"
#include "lockstep/commands/run_kinds.h"
#include "lockstep/commands/run_plan.h"
#include "lockstep/commands/uploader.h"
#include "lockstep/fleet/budget.h"
#include "lockstep/launch/agent_main.h"
#include "lockstep/launch/head.h"
#include "lockstep/launch/run_record.h"
#include "lockstep/os/process.h"
#include "lockstep/reach/transfer.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using launch::Job;
using nlohmann::json;
using std::chrono::seconds;

constexpr Duration kAnswer = seconds(30);
constexpr Duration kAgentAnswer = seconds(75);
constexpr Duration kStopPatience = seconds(15);
constexpr Duration kAbandonPatience = seconds(3);
// What a rented machine holds is gone with it.
constexpr Duration kFetchPatience = seconds(60);

class HostsRun {
 public:
  explicit HostsRun(const RunOrder& order)
      : order_(order), job_(order.priced.job) {}

  // Reaches the hosts and plans the ranks.
  Result<void> plan() {
    std::vector<std::string> names;
    for (const auto& host : order_.hosts) {
      names.push_back(host.host);
    }
    LOCKSTEP_TRY(launch::check_host_envs(job_, names));
    const int wanted =
        order_.options.nodes.value_or(job_.num_nodes.value_or(0));
    if (wanted > static_cast<int>(names.size())) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format("{} nodes are wanted of {} hosts", wanted, names.size()));
    }
    if (wanted > 0) {
      names.resize(static_cast<size_t>(wanted));
    }
    LOCKSTEP_ASSIGN(trainer_, find_far_trainer());
    LOCKSTEP_ASSIGN(
        argv_,
        launch::job_command(
            job_, far_trainer_.empty() ? trainer_ : far_trainer_, 0));
    LOCKSTEP_ASSIGN(nodes_, reach_nodes(names, job_.resources.ssh_options));
    LOCKSTEP_TRY(plan_ranks());
    return trainer_.empty() ? Result<void>()
                            : check_train(job_, trainer_, plan_);
  }

  const launch::RankPlan& rank_plan() const { return plan_; }
  const std::vector<std::string>& argv() const { return argv_; }
  const record::RunDirectory& run() const { return *run_; }
  // Tells the head that we are here to rent; none: it never rents.
  const RentingBeat* beat() const { return beat_.get(); }

  // Everything that ranks need is on every node; nothing runs yet.
  Result<void> prepare() {
    LOCKSTEP_ASSIGN(mounts_, resolve_mounts(job_));
    LOCKSTEP_ASSIGN(
        run_,
        record::RunDirectory::create(
            fs::absolute(order_.settings.runs_dir).lexically_normal(),
            job_.name));
    if (!trainer_.empty()) {
      LOCKSTEP_ASSIGN(set_, reach::program_set(trainer_, cache_folder()));
    }
    const Preparation what = preparation();
    const auto prepared = on_each(
        nodes_, [&](FarNode& node) { return prepare_node(node, what); });
    write_setup_log();
    if (!prepared) {
      std::error_code ignored;
      if (job_.setup.empty()) {
        fs::remove_all(run_->path(), ignored);
      }
      return prepared;
    }
    return {};
  }

  // Head and agents run; from here on the run has a life of its own.
  Result<void> start() {
    const Key& key = key_ = make_key();
    LOCKSTEP_ASSIGN(
        uploader_,
        uploader_orders(job_, *run_, has_role() ? Keys::kOwn : Keys::kSent));
    head_ = HeadState::kStarts;
    const auto answer = nodes_[0].session->call(
        "head",
        {{"spec", launch::to_json(head_spec(key))}},
        os::Deadline::after(kAnswer));
    head_ = answer ? HeadState::kRuns : HeadState::kNone;
    LOCKSTEP_ASSIGN(const json head, answer);
    const std::vector<std::string> local = head_addresses(head, true);
    const std::vector<std::string> others = head_addresses(head, false);
    head_addresses_ = others.empty() ? local : others;
    begin_beat();
    const auto started = on_each(nodes_, [&](FarNode& node) -> Result<void> {
      const auto index = static_cast<size_t>(&node - nodes_.data());
      return start_agent(node, index, index == 0 ? local : head_addresses_);
    });
    if (!started) {
      stop_head(*nodes_[0].session);
      return started;
    }
    return write_first_state();
  }

  // A new machine under the name of a node takes its place. From any thread,
  // once the run has begun.
  Result<void> rejoin(const std::string& host) {
    size_t index = 0;
    while (index < plan_.nodes.size() && plan_.nodes[index].host != host) {
      ++index;
    }
    if (index == plan_.nodes.size()) {
      return Error(ErrorCode::kInternal, host + " is no node of this run");
    }
    LOCKSTEP_ASSIGN(
        auto nodes, reach_nodes({host}, job_.resources.ssh_options));
    nodes[0].procs = plan_.nodes[index].procs;
    LOCKSTEP_TRY(prepare_node(nodes[0], preparation()));
    return start_agent(nodes[0], index, head_addresses_);
  }

  // mpirun starts the ranks from here, so the head is here too. Its words are
  // the same for all hosts.
  Result<launch::HeadSpec> mpi_spec() const {
    launch::HeadSpec spec = head_spec(make_key());
    spec.launcher = "mpi";
    spec.runs_dir = run_->path().parent_path();
    for (size_t i = 0; i < nodes_.size(); ++i) {
      if (nodes_[i].program != nodes_[0].program) {
        return Error(
                   ErrorCode::kInvalidInput,
                   fmt::format(
                       "mpirun needs lockstep under one name on all hosts, "
                       "but it is {} on {} and {} on {}",
                       nodes_[0].program.string(),
                       nodes_[0].host,
                       nodes_[i].program.string(),
                       nodes_[i].host))
            .with_fix("set LOCKSTEP_FAR_HOME to a path that fits all");
      }
      spec.nodes[i].folder = nodes_[0].home / "nodes" / run_->id();
      spec.nodes[i].program = nodes_[i].program;
      spec.nodes[i].environment.clear();  // a shim's own
    }
    return spec;
  }

  // While another thread is in start(), which never returns: what it started
  // ends, by a session of its own. A head that is about to start notices that
  // nobody waits for it.
  void abandon() {
    const auto deadline = os::Deadline::after(kAbandonPatience);
    while (head_ == HeadState::kStarts && !deadline.passed()) {
      os::real_clock().sleep_for(std::chrono::milliseconds(10));
    }
    if (head_ != HeadState::kRuns) {
      remove_record();
      return;
    }
    reach::ReachOptions options = reach_options(job_.resources.ssh_options);
    options.patience = kAbandonPatience;
    if (const auto session = reach::reach(nodes_[0].host, options)) {
      stop_head(**session);
    }
  }

  Result<std::unique_ptr<launch::Mirror>> mirror() {
    auto session = std::move(nodes_[0].session);
    nodes_.clear();  // the other sessions are not needed any more
    LOCKSTEP_ASSIGN(const auto state, state_of(*run_));
    return mirror_of(*run_, state, std::move(session));
  }

  std::string first_line() const {
    return headline(
        run_->id(), plan_.world_size(), plan_.nodes.size(), program());
  }

 private:
  void begin_beat() {
    if (order_.rented != nullptr && !order_.rented->renter.empty()) {
      beat_ = std::make_unique<RentingBeat>(
          [host = nodes_[0].host, words = job_.resources.ssh_options] {
            return reach::reach(host, reach_options(words));
          },
          head_directory(),
          away_time());
    }
  }

  Preparation preparation() const {
    return {
        job_,
        mounts_,
        set_ ? &*set_ : nullptr,
        far_trainer_,
        fs::absolute(order_.settings.runs_dir).lexically_normal(),
        argv_[0]};
  }

  bool is_spot(const std::string& host) const {
    return order_.rented != nullptr && order_.rented->spot.contains(host);
  }

  Result<void> start_agent(
      FarNode& node,
      size_t index,
      const std::vector<std::string>& addresses) {
    launch::AgentSpec spec;
    spec.run_id = run_->id();
    spec.key = to_hex(key_);
    spec.node = static_cast<int>(index);
    spec.head_addresses = addresses;
    spec.folder = folder_of(node, index);
    spec.spot = is_spot(node.host);
    LOCKSTEP_TRY(node.session->call(
        "agent",
        {{"spec", launch::to_json(spec)}},
        os::Deadline::after(kAgentAnswer)));
    return {};
  }

  // The run cannot begin: what was started ends.
  void stop_head(reach::Session& session) {
    const json where = {{"directory", head_directory().string()}};
    json stop = where;
    stop["now"] = true;
    (void)session.call("stop", stop, os::Deadline::after(kAnswer)).has_value();
    const auto deadline = os::Deadline::after(kStopPatience);
    while (!deadline.passed()) {
      const auto answer = session.call("state", where, deadline);
      if (!answer) {
        break;
      }
      const auto state =
          launch::parse_run_state(answer->value("state", ""), nodes_[0].host);
      if (!state || !state->is_running()) {
        break;
      }
      os::real_clock().sleep_for(std::chrono::milliseconds(50));
    }
    remove_record();
  }

  void remove_record() {
    std::error_code ignored;
    fs::remove_all(run_->path(), ignored);
  }

  // The loopback of the head is no way to it from other nodes.
  static std::vector<std::string> head_addresses(
      const json& head,
      bool loopback) {
    std::vector<std::string> addresses;
    for (const json& one : head.at("addresses")) {
      const std::string address = one.get<std::string>();
      if (loopback || !address.starts_with("127.")) {
        addresses.push_back(
            fmt::format("{}:{}", address, head.at("port").get<int>()));
      }
    }
    return addresses;
  }

  // Rented machines with a role of their own need no keys of ours.
  bool has_role() const {
    const auto& machine = job_.resources.machine;
    const auto profile = machine.find("instance_profile");
    return profile != machine.end() && !profile->second.is_null();
  }

  bool has_train() const {
    return job_.train.kind() != config::Node::Kind::kNull;
  }

  // $LOCKSTEP_TRAINER_REMOTE is one that is on every node already.
  Result<os::Path> find_far_trainer() {
    const char* there = std::getenv("LOCKSTEP_TRAINER_REMOTE");
    if (has_train() && there != nullptr && *there != 0) {
      far_trainer_ = there;
      return os::Path();
    }
    if (job_.container.kind() != config::Node::Kind::kNull) {
      return os::Path();  // the image's own
    }
    return find_trainer(job_);
  }

  Result<void> plan_ranks() {
    std::vector<int> by_facts;
    for (const FarNode& node : nodes_) {
      by_facts.push_back(std::max(1, node.gpus));
    }
    const std::vector<launch::HostSlots> hosts(
        order_.hosts.begin(),
        order_.hosts.begin() + static_cast<ptrdiff_t>(nodes_.size()));
    LOCKSTEP_ASSIGN(
        const std::vector<int> ranks,
        launch::ranks_by_host(
            hosts,
            static_cast<int>(nodes_.size()),
            job_.procs_per_node.value_or(0),
            by_facts));
    std::vector<launch::PlannedNode> planned;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].procs = ranks[i];
      planned.push_back({nodes_[i].host, ranks[i], nodes_[i].cores, ""});
    }
    LOCKSTEP_ASSIGN(plan_, launch::plan_ranks(std::move(planned)));
    return {};
  }

  void write_setup_log() {
    std::string text;
    for (const FarNode& node : nodes_) {
      if (!node.setup_log.empty()) {
        text += fmt::format("--- {}\n{}", node.host, node.setup_log);
        text += text.ends_with('\n') ? "" : "\n";
      }
    }
    if (text.empty()) {
      return;
    }
    const auto file =
        os::real_files().open_append(run_->path() / "ranks" / "setup.log");
    if (file) {
      (void)(*file)->append(text).has_value();
    }
  }

  os::Path head_directory() const {
    return nodes_[0].home / "runs" / run_->id();
  }

  os::Path folder_of(const FarNode& node, size_t index) const {
    return node.home / "nodes" / fmt::format("{}-{}", run_->id(), index);
  }

  std::string program() const { return program_name(job_, argv_); }

  std::optional<Money> price() const {
    if (!order_.priced.price) {
      return {};
    }
    return *order_.priced.price * static_cast<double>(plan_.nodes.size());
  }

  launch::HeadSpec head_spec(const Key& key) const {
    Job job = job_;
    job.envs = launch::common_envs(job_);
    launch::HeadSpec spec = first_spec(order_, *run_, "ssh", argv_);
    spec.runs_dir = nodes_[0].home / "runs";
    spec.job = launch::job_text(job);
    spec.key = to_hex(key);
    for (const FarNode& node : nodes_) {
      launch::HeadNode one;
      one.host = node.host;
      one.procs = node.procs;
      one.workdir = node.workdir;
      one.trainer = node.trainer;
      one.folder = folder_of(node, static_cast<size_t>(&node - nodes_.data()));
      one.spot = is_spot(node.host);
      one.environment = node.environment;
      one.envs = launch::host_envs(job_, node.host);
      spec.nodes.push_back(std::move(one));
    }
    spec.price_per_hour = price();
    spec.outputs = outputs_of(job_, *run_);
    spec.uploader = uploader_;
    if (const Rented* rented = order_.rented) {
      spec.before = from_seconds(
          std::max(0.0, os::real_clock().unix_seconds() - rented->since));
      spec.terms = rented->terms;
      spec.replacement = rented->replacement;
      if (!rented->renter.empty()) {
        spec.renter = with_mounts(rented->renter, nodes_[0].mounts);
      }
      if (spec.timeout) {
        spec.timeout = *spec.timeout + spec.before;  // of the run, not of these
      }
    }
    return spec;
  }

  Result<void> write_first_state() {
    launch::RunRequest request;
    request.job = job_;
    request.plan = plan_;
    request.program = program();
    request.price_per_hour = price();
    launch::RunStateFile state = launch::first_state(*run_, request);
    state.launcher = "ssh";
    state.host = nodes_[0].host;
    state.pid = 0;
    state.pid_start = 0;
    state.head_host = nodes_[0].host;
    state.head_directory = head_directory().string();
    for (const FarNode& node : nodes_) {
      state.hosts.push_back(node.host);
    }
    state.ssh_options = job_.resources.ssh_options;
    state.command = repeat_command(job_, order_.context);
    state.price_source = order_.priced.source;
    state.outputs = outputs_of(job_, *run_);
    if (order_.rented != nullptr) {
      state.cluster = order_.rented->cluster;
      state.started = order_.rented->since;
    }
    return launch::begin_record(*run_, job_, state);
  }

  const RunOrder& order_;
  const Job& job_;
  std::string uploader_;  // its orders
  Key key_{};
  std::vector<std::string> head_addresses_;  // from other nodes
  std::vector<Mount> mounts_;
  std::optional<reach::ProgramSet> set_;
  os::Path trainer_;      // here; empty: none has to be sent
  os::Path far_trainer_;  // that is on the nodes already
  std::vector<std::string> argv_;
  std::vector<FarNode> nodes_;
  launch::RankPlan plan_;
  std::optional<record::RunDirectory> run_;
  enum class HeadState { kNone, kStarts, kRuns };
  std::atomic<HeadState> head_ = HeadState::kNone;
  std::unique_ptr<RentingBeat> beat_;
};

// While the run is watched, others are rented in place of machines that are
// taken away, unless the head does that.
Result<int> watch_renting(
    HostsRun& hosts,
    Rented& rented,
    const std::function<Result<int>()>& watch) {
  const RentingBeat* beat = hosts.beat();
  if (beat != nullptr) {
    rented.is_heads_turn = [beat] { return !beat->is_ours(); };
  }
  Result<int> code = 0;
  {
    ReplacementSteps steps;
    if (rented.rent) {
      steps.rent = [&](const std::string& host, const Absence& absence) {
        return beat != nullptr && !beat->is_ours() ? Result<bool>(false)
                                                   : rented.rent(host, absence);
      };
    }
    steps.join = [&](const std::string& host) { return hosts.rejoin(host); };
    steps.stop = rented.stop_renting;
    const Replacements replacements(hosts.run(), rented.spot, std::move(steps));
    code = watch();
  }
  rented.is_heads_turn = nullptr;
  return code;
}

// Of all machines, an hour.
std::optional<Money> price_of_all(const RunOrder& order) {
  if (!order.priced.price) {
    return {};
  }
  return *order.priced.price * static_cast<double>(order.hosts.size());
}

// How much of what the run left its budget still pays for, now that it has
// ended; none: all. Tables and logs are always worth their hundredth of a cent.
std::optional<Bytes> affordable(const RunOrder& order, const Rented& rented) {
  constexpr Duration kGivingBack = std::chrono::seconds(30);
  constexpr Bytes kLeast{1'000'000};
  const auto price = price_of_all(order);
  if (!price) {
    return {};
  }
  const Duration time =
      from_seconds(os::real_clock().unix_seconds() - rented.since);
  // Machines of a moment cost their first minute all the same.
  const Money spent =
      fleet::billed(*price, time + std::min<Duration>(kGivingBack, time / 10));
  const auto most = launch::affordable(order.priced.job, spent, rented.terms);
  return most ? std::optional(std::max(*most, kLeast)) : most;
}

// What bounds the time before the ranks: a cap counts from the first machine,
// and a set-up may not take longer than the run.
TimeLimit limit_before(const RunOrder& order, const Rented& rented) {
  const launch::Job& job = order.priced.job;
  TimeLimit limit;
  if (order.priced.timeout && !job.setup.empty()) {
    limit = {
        os::Deadline::after(*order.priced.timeout),
        launch::exit_code(launch::RunEnd::kTimeout),
        "timeout " + format_duration(*order.priced.timeout)};
  }
  const auto cap = launch::cap_of(job, price_of_all(order), rented.terms);
  if (!cap || order.rented == nullptr) {
    return limit;
  }
  const Duration left =
      cap->end - from_seconds(os::real_clock().unix_seconds() - rented.since);
  if (!order.priced.timeout || job.setup.empty() ||
      left < *order.priced.timeout) {
    limit = {
        os::Deadline::after(std::max(left, Duration(0))),
        launch::exit_code(launch::RunEnd::kCapped),
        cap->reason};
  }
  return limit;
}

}  // namespace

Result<int> run_on_hosts(const RunOrder& order, const std::string& launcher) {
  // Before any thread is there.
  launch::StopSignals signals;
  ::signal(SIGPIPE, SIG_IGN);
  HostsRun hosts(order);
  Rented none;
  Rented& rented = order.rented == nullptr ? none : *order.rented;
  const auto give_back = [&] {
    if (rented.give_back) {
      rented.give_back();
    }
  };
  LOCKSTEP_TRY(interruptible(signals, [&] { return hosts.plan(); }, give_back));
  if (order.options.dry_run) {
    print_plan(
        order.priced, hosts.rank_plan(), hosts.argv(), order.context.format());
    return 0;
  }
  const TimeLimit limit = limit_before(order, rented);
  LOCKSTEP_TRY(interruptible(
      signals, [&] { return hosts.prepare(); }, give_back, limit));
  if (launcher == "mpi") {
    LOCKSTEP_ASSIGN(const launch::HeadSpec spec, hosts.mpi_spec());
    rented.run = hosts.run();
    rented.is_fetched = true;  // its head is here
    return watch_local_head(
        order, hosts.run(), spec, hosts.first_line(), signals);
  }
  LOCKSTEP_TRY(interruptible(
      signals,
      [&] { return hosts.start(); },
      [&] {
        hosts.abandon();
        give_back();
      }));
  rented.run = hosts.run();
  order.tell(hosts.run());
  LOCKSTEP_ASSIGN(const auto mirror, hosts.mirror());
  if (rented.began) {
    rented.began(hosts.run());
  }
  if (order.options.detach) {
    print_detached(hosts.run(), order.settings, order.context.format());
    return 0;
  }
  Watch watch;
  watch.format = order.context.format();
  watch.first_line = hosts.first_line();
  watch.follow.all_ranks = order.options.ranks == "all";
  watch.follow.from_start = true;
  if (order.rented != nullptr) {
    watch.is_fetched = &rented.is_fetched;
    watch.ended = rented.reports ? &rented.ended : nullptr;
    if (rented.gone) {
      watch.follow.gone = [&rented, head = order.hosts.front().host] {
        return rented.gone(head);
      };
    }
    watch.fetch_patience = kFetchPatience;
    watch.affordable = [&] { return affordable(order, rented); };
  }
  return watch_renting(hosts, rented, [&] {
    return watch_run(hosts.run(), mirror.get(), signals, watch);
  });
}

}  // namespace lockstep::commands
