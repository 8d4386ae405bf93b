#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/log.h"
#include "lockstep/commands/check_train.h"
#include "lockstep/commands/cluster_table.h"
#include "lockstep/commands/mounts.h"
#include "lockstep/commands/node_sessions.h"
#include "lockstep/commands/outputs.h"
#include "lockstep/commands/remote.h"
#include "lockstep/commands/renter.h"
#include "lockstep/commands/run_machines.h"
#include "lockstep/commands/run_plan.h"
#include "lockstep/commands/spot_renter.h"
#include "lockstep/fleet/lease.h"
#include "lockstep/launch/traffic.h"
#include "lockstep/record/event_log.h"
#include "lockstep/record/logbook.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

// To fetch what the run left and to give the machines back.
constexpr Duration kReserve = std::chrono::minutes(2);
constexpr Duration kLongestKept = std::chrono::hours(24);
constexpr Duration kLeaseAnswer = std::chrono::seconds(10);
constexpr int kLostCode = 3;

// A mistyped key of the trainer is told before anything costs, where it is
// known how many ranks there will be.
Result<void> check_trainer(const RunOrder& order) {
  const launch::Job& job = order.priced.job;
  const char* there = std::getenv("LOCKSTEP_TRAINER_REMOTE");
  const bool is_there = there != nullptr && *there != 0;
  if (job.train.kind() == config::Node::Kind::kNull || is_there ||
      job.container.kind() != config::Node::Kind::kNull) {
    return {};
  }
  LOCKSTEP_ASSIGN(const os::Path trainer, find_trainer(job));
  const int nodes = order.options.nodes.value_or(job.num_nodes.value_or(1));
  return job.procs_per_node
             ? check_train(job, trainer, nodes, *job.procs_per_node)
             : Result<void>();
}

class CloudRun {
 public:
  CloudRun(const RunOrder& order, std::string launcher)
      : order_(order), launcher_(std::move(launcher)) {}

  Result<int> run() {
    LOCKSTEP_TRY(read_keep());
    LOCKSTEP_ASSIGN(cluster_, cluster_of(order_, order_.settings));
    LOCKSTEP_TRY(
        interrupt_.during([this] { return reach_outputs(order_.priced.job); }));
    folder_ = clusters_folder() / cluster_.name;
    Result<int> code = run_here();
    const bool is_ours = open_.journal != nullptr;  // else another command's
    open_.journal.reset();
    if (!is_left_ && is_ours) {
      std::error_code ignored;
      fs::remove_all(folder_, ignored);
    }
    return code;
  }

 private:
  Result<void> read_keep() {
    if (!order_.options.keep) {
      return {};
    }
    LOCKSTEP_ASSIGN(
        keep_, parse_duration(*order_.options.keep).with_context("--keep"));
    if (keep_ < std::chrono::seconds(10) || keep_ > kLongestKept) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "--keep {}: accepted: 10s to {}",
              *order_.options.keep,
              format_duration(kLongestKept)));
    }
    return {};
  }

  Result<int> run_here() {
    LOCKSTEP_ASSIGN(
        open_,
        open_cluster(cluster_.name, cluster_.region, order_.settings, true));
    ClusterKey key;
    fleet::Plan plan;
    bool is_wanted = false;
    const auto look = [&]() -> Result<void> {
      LOCKSTEP_TRY(check_trainer(order_));
      LOCKSTEP_ASSIGN(key, cluster_key(cluster_, folder_));
      open_.spec = cluster_;
      LOCKSTEP_ASSIGN(
          plan,
          fleet::make_plan(
              *open_.cloud->provider, open_.cloud->book, cluster_));
      show_plan(cluster_, plan);
      if (!order_.options.dry_run) {
        LOCKSTEP_ASSIGN(is_wanted, may_proceed(order_.options.yes));
      }
      return {};
    };
    const auto clean = [this] {
      std::error_code ignored;
      fs::remove_all(folder_, ignored);
    };
    LOCKSTEP_TRY(interrupt_.during(look, clean));
    if (order_.options.dry_run) {
      print_rented_plan(
          order_.priced.job, cluster_, plan, order_.context.format());
      return 0;
    }
    if (!is_wanted) {
      std::fputs("nothing was made\n", stderr);
      return 0;
    }
    if (order_.options.detach) {
      return leave_behind(order_);
    }
    // Sources come to this machine first: no other one waits for them.
    const auto fetch_sources = [this]() -> Result<void> {
      LOCKSTEP_TRY(resolve_mounts(order_.priced.job));
      return {};
    };
    LOCKSTEP_TRY(interrupt_.during(fetch_sources, clean));
    return rent(key, plan);
  }

  Result<int> rent(const ClusterKey& key, const fleet::Plan& plan) {
    fleet::FleetOptions options = open_.options();
    options.shares_name = true;
    LOCKSTEP_ASSIGN(options.ssh_from, ssh_ranges(cluster_));
    options.public_key = key.public_line;
    options.stopped = [this] {
      return interrupt_.happened() || is_over_ ||
             (rented_.is_heads_turn && rented_.is_heads_turn());
    };
    options.addressed = [&](const std::vector<fleet::Node>& nodes) {
      return write_ssh_config(folder_, key.file, nodes);
    };
    fleet_ = std::make_unique<fleet::Fleet>(std::move(options));
    rented_.cluster = cluster_.name;
    rented_.reports = true;
    rented_.since = os::real_clock().unix_seconds();
    rented_.terms = {kReserve, plan.longest_life, fleet::kTrafficGigabyte};
    if (rented_.terms.life) {
      // The machines' own timers leave time for their shutdown.
      *rented_.terms.life -= from_seconds(fleet::kShutdownSeconds);
    }
    rented_.give_back = [this] { (void)give_back(); };
    renter_ = std::make_unique<SpotRenter>(SpotRenterOptions{
        cluster_,
        plan,
        open_.cloud->provider.get(),
        fleet_.get(),
        rented_.since});
    rented_.gone = [this](const std::string& name) -> std::string {
      return renter_->has_ended(name)
                 ? "the cloud says that its machine has ended"
                 : "";
    };
    if (was_left_behind()) {
      rented_.began = tell_begun;
    }
    auto acquired = fleet_->acquire(cluster_, plan);
    if (!acquired && acquired.error().code() == ErrorCode::kUnavailable &&
        time_left() <= Duration(0)) {
      (void)fail(acquired.error());
      return launch::exit_code(launch::RunEnd::kCapped);
    }
    LOCKSTEP_ASSIGN(const auto nodes, std::move(acquired));
    note_spot(nodes, plan, key);
    Result<int> code = 0;
    {
      const KeepAwake awake(open_, nodes);
      code = run_on_hosts(order_on(order_, nodes, folder_, rented_), launcher_);
    }
    is_over_ = false;  // of what follows Ctrl-C alone decides
    return finish(std::move(code), nodes);
  }

  // Machines of the spot market may be taken away: others are rented in their
  // place by this command, and by the head where it can.
  void note_spot(
      const std::vector<fleet::Node>& nodes,
      const fleet::Plan& plan,
      const ClusterKey& key) {
    for (const fleet::Node& node : nodes) {
      if (node.instance.market == cloud::Market::kSpot) {
        rented_.spot.insert(node.name);
        renter_->note(node.name, {node.instance.type, node.instance.zone});
      }
    }
    if (rented_.spot.empty()) {
      return;
    }
    rented_.replacement = replacement_time();
    rented_.stop_renting = [this] { is_over_ = true; };
    rented_.rent = [this](const std::string& node, const Absence& absence) {
      return renter_->rent(node, absence);
    };
    const std::string start = fmt::format(
        "{} of {} machines are spot: others are rented in place of those that "
        "are taken away",
        rented_.spot.size(),
        nodes.size());
    std::string why = rented_.spot.contains(nodes.front().name)
                          ? "the run ends with the first of them"
                          : why_not_on_head(cluster_, launcher_);
    if (why.empty()) {
      auto orders = renter_orders({cluster_, plan, nodes, rented_.since, key});
      if (orders) {
        rented_.renter = std::move(*orders);
        log_info(
            fmt::format(
                "{}; by the head once this machine was away for {}",
                start,
                format_duration(away_time())));
        return;
      }
      why = orders.error().to_string();
    }
    log_warning(
        fmt::format(
            "{} while this command runs; nothing is replaced while this "
            "machine is off or away: {}",
            start,
            why));
  }

  // Until the machines' own timers end them, whatever their lease is.
  Duration time_left() const {
    if (!rented_.terms.life) {
      return Duration::max();
    }
    const double passed = os::real_clock().unix_seconds() - rented_.since;
    return *rented_.terms.life - from_seconds(passed);
  }

  // Machines go back in every ending, once what the run left is here.
  Result<int> finish(Result<int> code, const std::vector<fleet::Node>& nodes) {
    if (rented_.run) {
      const auto noted = fleet_->note_traffic(launch::run_bytes(*rented_.run));
      if (!noted) {
        log_warning(noted.error().to_string());
      }
    }
    const bool is_missing =
        rented_.run && !rented_.is_fetched && code && *code != kLostCode;
    const Duration wished = keep_ > Duration(0) ? keep_
                            : is_missing        ? cluster_.idle
                                                : Duration(0);
    const Duration time = std::min(wished, time_left());
    if (wished > Duration(0) && time <= Duration(0)) {
      log_warning(
          "nothing is kept: budget or max_duration end the machines now");
    }
    if (time > Duration(0)) {
      is_left_ = true;
      if (const auto renewed = fleet_->renew(nodes, time); !renewed) {
        log_warning(renewed.error().to_string());
      }
      say_kept(nodes, time, is_missing);
      if (time < wished) {
        log_warning("then budget or max_duration end them");
      }
    } else if (const auto back = give_back(); !back) {
      is_left_ = true;
      log_error(
          fmt::format(
              "not everything could be given back: {}; machines end when their "
              "lease is over ({}), 'lockstep audit --fix' ends the rest",
              back.error().to_string(),
              format_duration(cluster_.idle)));
      worsen(code, kLostCode);
    }
    if (rented_.run && rented_.ended) {
      show_report(*rented_.run, *rented_.ended, order_.context.format());
    }
    if (rented_.run && rented_.is_fetched) {
      if (const auto stored = store_outputs(order_.priced.job, *rented_.run);
          !stored) {
        log_error(
            fmt::format(
                "{}; everything is in {}",
                stored.error().to_string(),
                rented_.run->path().string()));
        worsen(code, 1);
      }
    }
    if (is_missing) {
      worsen(code, kLostCode);
    }
    return code;
  }

  // What went wrong after a run that went well.
  static void worsen(Result<int>& code, int to) {
    if (code && *code == 0) {
      code = to;
    }
  }

  Result<void> give_back() {
    LOCKSTEP_TRY(fleet_->release());
    const auto cost = fleet_->cost();
    if (cost && cost->known) {
      log_info(
          fmt::format(
              "{} machine{} given back, {}",
              cluster_.num_nodes(),
              cluster_.num_nodes() == 1 ? "" : "s",
              bill(*cost)));
      write_cost(cost->so_far);
    } else {
      log_info(fmt::format("the machines of {} are given back", cluster_.name));
    }
    return {};
  }

  // What it came to, with the time before and after the ranks.
  void write_cost(Money cost) {
    if (!rented_.run) {
      return;
    }
    if (!rented_.ended) {
      const auto state = launch::read_run_state(*rented_.run);
      if (!state || !*state) {
        return;
      }
      rented_.ended = **state;
    }
    launch::RunStateFile& now = *rented_.ended;
    now.cost = cost.dollars();
    if (now.ended == 0) {
      // Nobody will ever tell more about it.
      now.detail =
          now.is_running() ? "its machines were given back" : now.detail;
      now.state = "lost";
      now.exit_code = kLostCode;
      now.ended = os::real_clock().unix_seconds();
    }
    (void)launch::write_run_state(*rented_.run, now).has_value();
    if (const auto events = record::EventWriter::open(
            os::real_files(), rented_.run->events(), -1, "")) {
      (*events)->write(wire::Cost{cost.dollars(), 0});
    }
    rewrite_logbook(now);
  }

  // The head wrote it before anybody knew the bill.
  void rewrite_logbook(const launch::RunStateFile& state) const {
    record::LogbookInput input;
    input.name = order_.priced.job.name;
    input.command = state.command;
    if (state.dollars_per_hour > 0) {
      input.price_per_hour = Money::from_dollars(state.dollars_per_hour);
      input.price_source = state.price_source;
    }
    input.started = state.started;
    input.ended = state.ended;
    input.ending = state.state == "done" ? "" : state.detail;
    input.outputs = state.outputs;
    if (const auto written = record::write_logbook(*rented_.run, input);
        !written) {
      log_warning(written.error().to_string());
    }
  }

  void say_kept(
      const std::vector<fleet::Node>& nodes,
      Duration time,
      bool is_missing) {
    log_info(
        fmt::format(
            "{}{} machine{} kept for {}: lockstep ssh {}, lockstep extend {} "
            "1h, lockstep down {}",
            is_missing ? "not everything is here: " : "",
            nodes.size(),
            nodes.size() == 1 ? "" : "s",
            format_duration(time),
            nodes.front().name,
            cluster_.name,
            cluster_.name));
    if (is_missing) {
      log_info(fmt::format("lockstep attach {} fetches it", rented_.run->id()));
    }
  }

  const RunOrder& order_;
  const std::string launcher_;
  Interrupt interrupt_;
  Duration keep_{};
  fleet::Cluster cluster_;
  os::Path folder_;
  OpenCluster open_;
  std::unique_ptr<fleet::Fleet> fleet_;
  Rented rented_;
  std::unique_ptr<SpotRenter> renter_;  // the fleet's guard during the run
  std::atomic<bool> is_over_ = false;
  bool is_left_ = false;  // machines stay, and what is known of them
};

// A terminal that closes must not leave machines alone.
void outlive_terminal() {
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
}

Result<void> check_detached(const RunOrder& order) {
  if (order.options.detach && order.priced.job.outputs.empty()) {
    return Error(
               ErrorCode::kInvalidInput,
               "a detached run on machines of a cloud needs 'outputs': they "
               "end when it is over, with all that is on them")
        .with_fix("as in outputs: s3://my-bucket/runs");
  }
  return {};
}

}  // namespace

Result<int> run_on_cloud(const RunOrder& order, const std::string& launcher) {
  LOCKSTEP_TRY(check_detached(order));
  outlive_terminal();
  LOCKSTEP_ASSIGN(const RunOrder capped, within_cap(order));
  LOCKSTEP_ASSIGN(const RunOrder chosen, with_type(capped));
  return CloudRun(chosen, launcher).run();
}

Result<int> run_on_cluster(const RunOrder& order, const std::string& launcher) {
  LOCKSTEP_TRY(check_detached(order));
  LOCKSTEP_TRY(reach_outputs(order.priced.job));
  if (order.options.detach) {
    return leave_behind(order);
  }
  outlive_terminal();
  // Before any thread is there.
  const launch::StopSignals signals;
  LOCKSTEP_ASSIGN(
      const OpenCluster open,
      open_cluster(
          order.priced.job.resources.cluster, "", order.settings, false));
  LOCKSTEP_ASSIGN(const auto nodes, reachable_nodes(open));
  Rented rented;
  rented.cluster = open.name;
  rented.since = os::real_clock().unix_seconds();
  // The cluster has caps of its own: the run ends before its machines do.
  rented.terms.life =
      fleet::time_to_end(*open.shell, nodes, os::Deadline::after(kLeaseAnswer));
  if (rented.terms.life) {
    rented.terms.reserve = kReserve;
  }
  rented.terms.gigabyte = fleet::kTrafficGigabyte;
  if (was_left_behind()) {
    rented.began = tell_begun;
  }
  const RunOrder there = order_on(order, nodes, open.folder, rented);
  if (order.priced.job.budget && !there.priced.price) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "a budget is set, and nobody knows the price of the nodes "
                   "of '{}'",
                   open.name))
        .with_fix("give --price 0.40 (dollars an hour and node)");
  }
  const KeepAwake awake(open, nodes);
  LOCKSTEP_ASSIGN(const int code, run_on_hosts(there, launcher));
  if (rented.run && rented.is_fetched) {
    LOCKSTEP_TRY(store_outputs(order.priced.job, *rented.run));
  }
  return code;
}

}  // namespace lockstep::commands
