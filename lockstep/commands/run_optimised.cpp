#include "lockstep/commands/run_optimised.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <filesystem>

#include "lockstep/base/log.h"
#include "lockstep/commands/cluster_table.h"
#include "lockstep/commands/costs.h"
#include "lockstep/commands/decision_log.h"
#include "lockstep/commands/node_sessions.h"
#include "lockstep/commands/outputs.h"
#include "lockstep/commands/run_machines.h"
#include "lockstep/commands/run_plan.h"
#include "lockstep/commands/sittings.h"
#include "lockstep/economics/optimise.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/launch/run_record.h"
#include "lockstep/record/logbook.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using economics::CatalogueEntry;

constexpr Duration kReserve = std::chrono::minutes(2);
constexpr Duration kLook = std::chrono::milliseconds(200);
constexpr Duration kPeriod = std::chrono::seconds(60);
constexpr int64_t kWarmUp = 2;     // steps of a sitting that say nothing
constexpr size_t kMostLives = 25;  // nodes in a run's life, by their letters

Error invalid(const std::string& text) {
  return Error(ErrorCode::kInvalidInput, text);
}

// A key of the `train` section, nested or dotted; empty: not given.
std::string train_value(const config::Node& node, std::string_view key) {
  if (node.kind() != config::Node::Kind::kMap) {
    return "";
  }
  if (const config::Node* found = node.find(key)) {
    return found->text();
  }
  for (size_t dot = key.find('.'); dot != std::string_view::npos;
       dot = key.find('.', dot + 1)) {
    if (const config::Node* found = node.find(key.substr(0, dot))) {
      return train_value(*found, key.substr(dot + 1));
    }
  }
  return "";
}

class OptimisedRun {
 public:
  explicit OptimisedRun(const RunOrder& order)
      : order_(order),
        job_(order.priced.job),
        types_(job_.optimise.candidates),
        period_(to_seconds(job_.optimise.period.value_or(kPeriod))) {}

  Result<int> run() {
    LOCKSTEP_TRY(check());
    LOCKSTEP_TRY(reach_outputs(job_));
    LOCKSTEP_TRY(first_cluster());
    folder_ = clusters_folder() / cluster_.name;
    Result<int> code = run_here();
    open_.journal.reset();
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
    return code;
  }

 private:
  Result<void> check();
  Result<void> first_cluster();
  Result<int> run_here();
  Result<int> rent(const ClusterKey& key);
  Result<int> train();
  Result<std::optional<int>> decide();
  Result<std::optional<int>> change(const economics::Decision& decision);
  Result<void> sit();
  void note_traffic();
  Result<void> acquire(const fleet::Cluster& cluster);
  Result<std::vector<CatalogueEntry>> catalogue();
  economics::History history(Money spent);
  void begin_record();
  void end_record(int code);
  int num_live() const { return static_cast<int>(nodes_.size()); }
  double now() const { return os::real_clock().unix_seconds(); }
  double elapsed() const { return now() - began_; }

  const RunOrder& order_;
  const launch::Job& job_;
  const std::vector<std::string> types_;
  const double period_;
  economics::OptimiseOptions options_;
  Interrupt interrupt_;
  fleet::Cluster cluster_;
  os::Path folder_;
  OpenCluster open_;
  std::unique_ptr<fleet::Fleet> fleet_;
  std::vector<fleet::Node> nodes_;
  std::unique_ptr<KeepAwake> awake_;
  std::optional<record::RunDirectory> run_;
  std::unique_ptr<Sittings> sittings_;
  DecisionLog log_;
  launch::RunStateFile state_;
  double began_ = 0;
  double ready_ = 60;  // seconds from an order until its nodes train
  double mark_ = 0;    // when the present period began
  double stopped_ = 0;
  int64_t mark_step_ = 0;
  std::vector<economics::Period> periods_;
  std::vector<economics::PastChange> changes_;
  std::vector<bool> unavailable_;  // by type
};

Result<void> OptimisedRun::check() {
  if (order_.options.detach) {
    return invalid(
        "optimise: decisions need somebody who stays: leave out "
        "--detach");
  }
  if (job_.optimise.goal != "cost" && job_.optimise.goal != "time" &&
      !job_.optimise.goal.empty()) {
    return invalid(
        fmt::format(
            "optimise.goal: '{}'; accepted: cost, time", job_.optimise.goal));
  }
  if (types_.empty()) {
    return std::move(invalid("optimise.candidates: no type is named"))
        .with_fix("optimise: {candidates: [c5.xlarge, c5.2xlarge]}");
  }
  if (period_ < 1) {
    return invalid("optimise.period: accepted: 1s and more");
  }
  if (job_.train.is_null()) {
    return std::move(
               invalid(
                   "optimise: this program does not show how long its ranks "
                   "wait for each other, so which machine is slow cannot be "
                   "known while they train together"))
        .with_fix(
            "compare machines by separate probes: lockstep bench JOB.yaml "
            "--candidates a,b");
  }
  const std::string batch = train_value(job_.train, "data.global_batch_size");
  int64_t number = 0;
  std::from_chars(batch.data(), batch.data() + batch.size(), number);
  if (number < 1) {
    return std::move(invalid(
                         "optimise: the number of nodes changes, and with "
                         "data.batch_size the global batch would, too"))
        .with_fix("train: {data: {global_batch_size: 256}}");
  }
  options_.goal = job_.optimise.goal == "time" ? economics::Goal::kTime
                                               : economics::Goal::kCost;
  options_.batch = number;
  options_.parts_a_node = job_.procs_per_node.value_or(1);
  options_.balanced = train_value(job_.train, "trainer.balance") == "auto";
  options_.most_nodes = job_.optimise.max_nodes;
  unavailable_.assign(types_.size(), false);
  return {};
}

// The wanted number of nodes, of each type in turn: a mixed cluster measures
// all types at once. Each node is a group of its own, so that any of them can
// go and names never move.
Result<void> OptimisedRun::first_cluster() {
  RunOrder order = order_;
  auto& resources = order.priced.job.resources;
  resources.instance_type = types_.front();
  resources.candidates.clear();
  LOCKSTEP_ASSIGN(cluster_, cluster_of(order, order_.settings));
  const fleet::NodeGroup model = cluster_.groups.front();
  const size_t count = static_cast<size_t>(order_.options.nodes.value_or(
      job_.num_nodes.value_or(static_cast<int>(types_.size()))));
  cluster_.groups.clear();
  for (size_t i = 0; i < count; ++i) {
    fleet::NodeGroup group = model;
    group.type = types_[i % types_.size()];
    group.count = group.minimum = 1;
    cluster_.groups.push_back(std::move(group));
  }
  return {};
}

Result<int> OptimisedRun::run_here() {
  LOCKSTEP_ASSIGN(
      open_,
      open_cluster(cluster_.name, cluster_.region, order_.settings, true));
  LOCKSTEP_ASSIGN(const ClusterKey key, cluster_key(cluster_, folder_));
  open_.spec = cluster_;
  fleet::Plan plan;
  bool is_wanted = false;
  const auto look = [&]() -> Result<void> {
    LOCKSTEP_ASSIGN(
        plan,
        fleet::make_plan(*open_.cloud->provider, open_.cloud->book, cluster_));
    show_plan(cluster_, plan);
    if (!order_.options.dry_run) {
      LOCKSTEP_ASSIGN(is_wanted, may_proceed(order_.options.yes));
    }
    return {};
  };
  LOCKSTEP_TRY(interrupt_.during(look, [this] {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }));
  if (order_.options.dry_run) {
    print_rented_plan(job_, cluster_, plan, order_.context.format());
    return 0;
  }
  if (!is_wanted) {
    std::fputs("nothing was made\n", stderr);
    return 0;
  }
  return rent(key);
}

Result<void> OptimisedRun::acquire(const fleet::Cluster& cluster) {
  LOCKSTEP_ASSIGN(
      const fleet::Plan plan,
      fleet::make_plan(*open_.cloud->provider, open_.cloud->book, cluster));
  LOCKSTEP_ASSIGN(nodes_, fleet_->acquire(cluster, plan));
  cluster_ = cluster;
  // In the order in which a sitting numbers its ranks.
  std::ranges::sort(nodes_, {}, [](const fleet::Node& node) {
    return std::pair(node.name.size(), node.name);
  });
  return {};
}

Result<int> OptimisedRun::rent(const ClusterKey& key) {
  fleet::FleetOptions options = open_.options();
  LOCKSTEP_ASSIGN(options.ssh_from, ssh_ranges(cluster_));
  options.public_key = key.public_line;
  options.stopped = [this] { return interrupt_.happened(); };
  options.addressed = [this, file = key.file](const auto& nodes) {
    return write_ssh_config(folder_, file, nodes);
  };
  fleet_ = std::make_unique<fleet::Fleet>(std::move(options));
  began_ = now();
  LOCKSTEP_TRY(acquire(cluster_));
  ready_ = elapsed();
  Result<int> code = train();
  note_traffic();
  sittings_.reset();
  awake_.reset();
  if (const auto back = fleet_->release(); !back) {
    log_error(
        fmt::format(
            "not everything could be given back: {}; 'lockstep audit --fix' "
            "ends the rest",
            back.error().to_string()));
    code = code && *code == 0 ? Result<int>(3) : std::move(code);
  }
  if (run_) {
    end_record(code ? *code : 3);
    LOCKSTEP_TRY(store_outputs(job_, *run_));
  }
  return code;
}

Result<void> OptimisedRun::sit() {
  awake_ = std::make_unique<KeepAwake>(open_, nodes_);
  note_traffic();
  std::optional<Money> budget;
  if (job_.budget) {
    LOCKSTEP_ASSIGN(const auto cost, fleet_->cost());
    budget = *job_.budget - cost.so_far;
  }
  std::optional<Duration> time;
  if (job_.max_duration) {
    time = *job_.max_duration - from_seconds(elapsed());
  }
  log_.nodes(elapsed(), types_, nodes_);
  mark_ = 0;
  return sittings_->start(cluster_.name, budget, time);
}

// Each sitting brings here what it left, which costs, too.
void OptimisedRun::note_traffic() {
  const Bytes came = sittings_ ? sittings_->take_traffic() : Bytes{};
  if (came.count == 0) {
    return;
  }
  if (const auto noted = fleet_->note_traffic(came); !noted) {
    log_warning(noted.error().to_string());
  }
}

Result<int> OptimisedRun::train() {
  begin_record();
  LOCKSTEP_TRY(sit());
  while (true) {
    os::real_clock().sleep_for(kLook);
    LOCKSTEP_ASSIGN(const auto ended, sittings_->look());
    if (ended) {
      return *ended;
    }
    if (interrupt_.happened()) {
      LOCKSTEP_TRY(sittings_->stop());
      return 130;
    }
    const Sights& sights = sittings_->sights();
    if (mark_ == 0 && sights.first_time() > 0) {
      // What a stop and a start cost, as this run sees it.
      options_.pause = now() - (stopped_ > 0 ? stopped_ : sittings_->started());
      mark_ = now();
      mark_step_ = sights.last_step() + kWarmUp;
    }
    if (mark_ == 0 || now() - mark_ < period_) {
      continue;
    }
    LOCKSTEP_ASSIGN(const auto over, decide());
    if (over) {
      return *over;
    }
  }
}

economics::History OptimisedRun::history(Money spent) {
  economics::History history;
  history.periods = periods_;
  history.changes = changes_;
  const Sights& sights = sittings_->sights();
  history.samples_left = (sights.total_steps().value_or(0) -
                          static_cast<double>(sights.last_step())) *
                         static_cast<double>(options_.batch);
  history.dollars_spent = spent.dollars();
  if (job_.budget) {
    history.budget_left = (*job_.budget - spent).dollars();
  }
  if (job_.max_duration) {
    history.seconds_left =
        to_seconds(*job_.max_duration) - elapsed() - to_seconds(kReserve);
  }
  return history;
}

Result<std::vector<CatalogueEntry>> OptimisedRun::catalogue() {
  std::vector<CatalogueEntry> entries;
  for (size_t i = 0; i < types_.size(); ++i) {
    CatalogueEntry entry;
    entry.name = types_[i];
    entry.ready = ready_;
    LOCKSTEP_ASSIGN(
        const auto prices, open_.cloud->book.prices(types_[i], open_.region));
    const auto market = job_.resources.use_spot == "true"
                            ? cloud::Market::kSpot
                            : cloud::Market::kOnDemand;
    const auto price = std::ranges::find(prices, market, &cloud::Price::market);
    if (price != prices.end()) {
      entry.dollars_per_hour = price->hourly.dollars();
    }
    const auto letters = static_cast<int>(kMostLives - cluster_.groups.size());
    entry.available =
        unavailable_[i] ? 0 : std::clamp(letters, 0, options_.most_nodes);
    entries.push_back(entry);
  }
  return entries;
}

Result<std::optional<int>> OptimisedRun::decide() {
  const Sights& sights = sittings_->sights();
  const auto look = sights.look(mark_step_, nodes_.size());
  economics::Period period;
  period.full = look.steps > 0;
  period.communication = look.communication;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const auto type = std::ranges::find(types_, nodes_[i].instance.type);
    economics::NodeSight sight;
    sight.name = nodes_[i].name;
    sight.kind = static_cast<size_t>(type - types_.begin());
    sight.compute = look.nodes[i].compute;
    sight.spread = look.nodes[i].spread;
    period.nodes.push_back(std::move(sight));
  }
  periods_.push_back(std::move(period));
  mark_ = now();
  mark_step_ = sights.last_step() + 1;
  LOCKSTEP_ASSIGN(const auto cost, fleet_->cost());
  LOCKSTEP_ASSIGN(const auto entries, catalogue());
  const auto decision =
      economics::decide(history(cost.so_far), entries, options_);
  const bool is_change =
      decision.action == economics::Decision::Action::kChange;
  const bool only_says = job_.optimise.dry_run;
  const std::string action = !is_change  ? "keep"
                             : only_says ? "would change"
                                         : "change";
  sittings_->note(wire::Decision{action, decision.reason});
  sittings_->note(wire::Cost{cost.so_far.dollars(), cost.hourly.dollars()});
  log_.decision(elapsed(), action, decision);
  log_info(fmt::format("optimise: {}: {}", action, decision.reason));
  if (!is_change || only_says) {
    return std::optional<int>();
  }
  return change(decision);
}

Result<std::optional<int>> OptimisedRun::change(
    const economics::Decision& decision) {
  fleet::Cluster cluster = cluster_;
  bool is_growing = false;
  for (size_t kind = 0; kind < decision.start.size(); ++kind) {
    for (int i = 0; i < decision.start[kind]; ++i) {
      fleet::NodeGroup group = cluster.groups.front();
      group.type = types_[kind];
      group.count = group.minimum = 1;
      cluster.groups.push_back(std::move(group));
      is_growing = true;
    }
  }
  const double ordered = now();
  if (is_growing) {
    // Training goes on meanwhile.
    const auto before = nodes_;
    if (const auto grown = acquire(cluster); !grown) {
      nodes_ = before;
      for (size_t kind = 0; kind < decision.start.size(); ++kind) {
        unavailable_[kind] = unavailable_[kind] || decision.start[kind] > 0;
      }
      const std::string why = grown.error().to_string();
      log_warning("optimise: the change is given up: " + why);
      sittings_->note(wire::Decision{"given up", why});
      return std::optional<int>();
    }
    ready_ = now() - ordered;
  }
  LOCKSTEP_ASSIGN(const auto ended, sittings_->look());
  if (ended) {
    return ended;
  }
  stopped_ = now();
  LOCKSTEP_ASSIGN(const int code, sittings_->stop());
  if (code != 130) {
    return std::optional<int>(code);  // it had ended, or failed, by itself
  }
  const auto wanted = cluster.wanted();
  for (const fleet::Cluster::Wanted& one : wanted) {
    if (std::ranges::count(decision.stop, one.node) > 0) {
      cluster.groups[one.group].count = 0;
      cluster.groups[one.group].minimum = 0;
    }
  }
  awake_.reset();
  LOCKSTEP_TRY(acquire(cluster));
  changes_.push_back({periods_.size() - 1, decision.dollars});
  LOCKSTEP_TRY(sit());
  return std::optional<int>();
}

void OptimisedRun::begin_record() {
  auto run = record::RunDirectory::create(
      fs::absolute(order_.settings.runs_dir).lexically_normal(), job_.name);
  if (!run) {
    log_error(run.error().to_string());
    return;
  }
  run_ = *run;
  order_.tell(*run_);
  launch::Job job = job_;
  job.resources = {};
  job.optimise = {};
  job.outputs.clear();
  job.num_nodes.reset();
  if (!job.workdir.empty()) {
    job.workdir = fs::absolute(job.workdir).lexically_normal().string();
  }
  sittings_ =
      std::make_unique<Sittings>(std::move(job), *run_, options_.parts_a_node);
  char host[256] = "localhost";
  ::gethostname(host, sizeof host - 1);
  state_.id = run_->id();
  state_.name = job_.name;
  state_.state = "running";
  state_.host = host;
  state_.pid = ::getpid();
  state_.pid_start = launch::start_ticks(state_.pid).value_or(0);
  state_.started = began_;
  state_.world_size = num_live() * options_.parts_a_node;
  state_.cluster = cluster_.name;
  state_.command = repeat_command(job_, order_.context);
  state_.program = "lockstep-train";
  state_.outputs = outputs_of(job_, *run_);
  (void)launch::begin_record(*run_, job_, state_).has_value();
}

void OptimisedRun::end_record(int code) {
  state_.ended = now();
  state_.exit_code = code;
  state_.state = code == 0     ? "done"
                 : code == 130 ? "stopped"
                 : code == 4   ? "capped"
                 : code == 3   ? "lost"
                               : "failed";
  state_.world_size = num_live() * options_.parts_a_node;
  state_.generation = static_cast<int>(changes_.size());
  const auto cost = fleet_->cost();
  if (cost && cost->known) {
    state_.cost = cost->so_far.dollars();
    log_info(
        fmt::format(
            "all machines are given back, {}, {} change{}",
            bill(*cost),
            changes_.size(),
            changes_.size() == 1 ? "" : "s"));
    log_.append_cost(*run_, cost->so_far);
  }
  if (const auto written = record::write_logbook(
          *run_,
          {.name = job_.name,
           .command = state_.command,
           .started = state_.started,
           .ended = state_.ended,
           .ending = code == 0 ? "" : state_.state});
      !written) {
    log_warning(written.error().to_string());
  }
  log_.write(*run_);
  (void)launch::write_run_state(*run_, state_).has_value();
}

}  // namespace

bool is_optimised(const launch::Job& job) {
  return !job.optimise.goal.empty() || !job.optimise.candidates.empty();
}

Result<int> run_optimised(const RunOrder& order) {
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  LOCKSTEP_ASSIGN(const RunOrder capped, within_cap(order));
  return OptimisedRun(capped).run();
}

}  // namespace lockstep::commands
