#include "lockstep/commands/renter.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "lockstep/base/id.h"
#include "lockstep/base/log.h"
#include "lockstep/commands/remote.h"
#include "lockstep/commands/replacements.h"
#include "lockstep/commands/run_machines.h"
#include "lockstep/commands/spot_renter.h"
#include "lockstep/launch/agent_main.h"
#include "lockstep/launch/renting.h"
#include "lockstep/reach/content.h"
#include "lockstep/reach/transfer.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLook = milliseconds(500);
constexpr Duration kAnswer = seconds(30);
constexpr Duration kAgentAnswer = seconds(75);
constexpr Duration kSetupAnswer = std::chrono::hours(12);
// What was on its way when the run ended goes back within this.
constexpr Duration kGivenBack = seconds(20);

// A node of the run, as the head knows it.
struct RunNode {
  std::string host;
  os::Path workdir, trainer, folder;
  bool spot = false;
};

// The orders, read.
struct Orders {
  fleet::Cluster cluster;
  fleet::Plan plan;
  json nodes;
  double since = 0;
  std::string private_key, public_key;
  std::map<std::string, std::string> environment;
  Duration away{};
  std::vector<PlacedMount> mounts;
  std::string run_key, setup;
  std::vector<RunNode> run_nodes;
  std::vector<std::string> addresses;
};

Result<Orders> read_orders(const json& value) {
  try {
    Orders orders;
    LOCKSTEP_ASSIGN(
        orders.cluster, fleet::cluster_from_json(value.at("cluster")));
    LOCKSTEP_TRY(fleet::check_cluster_name(orders.cluster.name));
    LOCKSTEP_ASSIGN(orders.plan, fleet::plan_from_json(value.at("plan")));
    orders.nodes = value.at("nodes");
    value.at("since").get_to(orders.since);
    value.at("private_key").get_to(orders.private_key);
    value.at("public_key").get_to(orders.public_key);
    value.at("environment").get_to(orders.environment);
    orders.away = milliseconds(value.at("away_ms").get<int64_t>());
    for (const json& one : value.at("mounts")) {
      orders.mounts.push_back(
          {one.at("name").get<std::string>(),
           one.at("target").get<std::string>()});
    }
    const json& run = value.at("run");
    run.at("key").get_to(orders.run_key);
    run.at("setup").get_to(orders.setup);
    run.at("addresses").get_to(orders.addresses);
    for (const json& one : run.at("nodes")) {
      RunNode node;
      one.at("host").get_to(node.host);
      node.workdir = one.at("workdir").get<std::string>();
      node.trainer = one.at("trainer").get<std::string>();
      node.folder = one.at("folder").get<std::string>();
      one.at("spot").get_to(node.spot);
      orders.run_nodes.push_back(std::move(node));
    }
    return orders;
  } catch (const json::exception& error) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("the renter's orders: {}", error.what()));
  }
}

class HeadRenter {
 public:
  HeadRenter(record::RunDirectory run, Orders orders)
      : run_(std::move(run)),
        orders_(std::move(orders)),
        folder_(reach::lockstep_home() / "clusters" / orders_.cluster.name) {}

  // The key is on this machine while the run lasts, and no longer.
  ~HeadRenter() {
    open_.journal.reset();
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }

  Result<void> begin() {
    // The group that stands is used as it is: the head may not change it.
    fleet::Cluster& cluster = orders_.cluster;
    if (cluster.security_group.empty()) {
      cluster.security_group = fleet::access_name(cluster.name);
    }
    LOCKSTEP_TRY(os::real_files().make_directories(folder_));
    if (::chmod(folder_.c_str(), 0700) != 0) {
      return os_error(fmt::format("cannot change {}", folder_.string()), errno);
    }
    LOCKSTEP_TRY(os::write_private(folder_ / "key", orders_.private_key));
    open_.name = cluster.name;
    open_.folder = folder_;
    open_.region = cluster.region;
    open_.spec = cluster;
    LOCKSTEP_ASSIGN(
        open_.journal, fleet::Journal::open(journal_options(folder_)));
    LOCKSTEP_TRY(note_first());
    LOCKSTEP_ASSIGN(open_.cloud, open_cloud(cluster.region, Settings()));
    open_.shell = std::make_unique<ClusterShell>(folder_);
    make_fleet();
    return {};
  }

  // Until our standard input ends.
  void work() {
    std::optional<Replacements> replacements;
    while (!input_ended()) {
      if (replacements) {
        continue;
      }
      const auto turn = launch::head_rents(run_, orders_.away);
      if (!turn) {
        log_warning(turn.error().to_string());
      } else if (*turn) {
        log_info(
            fmt::format(
                "nobody was heard of for {}: from now on this machine rents",
                format_duration(orders_.away)));
        replacements.emplace(run_, spot_nodes(), steps());
      }
    }
    is_over_ = true;
  }

 private:
  static bool input_ended() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    char ignored[64];
    return ::poll(&input, 1, static_cast<int>(kLook / milliseconds(1))) > 0 &&
           ::read(STDIN_FILENO, ignored, sizeof ignored) <= 0;
  }

  // A journal of our own goes on from what the client had rented: what that
  // costs stays counted when the cloud has forgotten it.
  Result<void> note_first() {
    fleet::Journal& journal = *open_.journal;
    if (!journal.steps().empty()) {
      return {};
    }
    const auto now = static_cast<int64_t>(os::real_clock().unix_seconds());
    LOCKSTEP_TRY(journal.note(
        "want",
        orders_.cluster.name,
        {{"id", make_run_id(orders_.cluster.name, now)},
         {"cluster", fleet::to_json(orders_.cluster)}}));
    for (const json& node : orders_.nodes) {
      LOCKSTEP_ASSIGN(
          const int step,
          journal.begin("launch", node.value("name", ""), json::object()));
      LOCKSTEP_TRY(journal.done(
          step,
          {{"id", node.value("id", "")},
           {"launched", node.value("launched", 0.0)},
           {"hourly", node.value("hourly", int64_t{0})}}));
    }
    return {};
  }

  void make_fleet() {
    fleet::FleetOptions options = open_.options();
    options.shares_name = true;
    options.public_key = orders_.public_key;
    options.patience = kGivenBack;
    options.stopped = [this] { return is_over_.load(); };
    options.addressed = [this](const std::vector<fleet::Node>& nodes) {
      return write_ssh_config(
          folder_, folder_ / "key", nodes, ReachedFrom::kInside);
    };
    fleet_ = std::make_unique<fleet::Fleet>(std::move(options));
    renter_ = std::make_unique<SpotRenter>(SpotRenterOptions{
        orders_.cluster,
        orders_.plan,
        open_.cloud->provider.get(),
        fleet_.get(),
        orders_.since});
    for (const json& node : orders_.nodes) {
      renter_->note(
          node.value("name", ""),
          {node.value("type", ""), node.value("zone", "")});
    }
  }

  std::set<std::string> spot_nodes() const {
    std::set<std::string> names;
    for (const RunNode& node : orders_.run_nodes) {
      if (node.spot) {
        names.insert(node.host);
      }
    }
    return names;
  }

  ReplacementSteps steps() {
    ReplacementSteps steps;
    steps.rent = [this](const std::string& node, const Absence& absence) {
      return renter_->rent(node, absence);
    };
    steps.join = [this](const std::string& node) { return join(node); };
    steps.stop = [this] { is_over_ = true; };
    return steps;
  }

  Result<void> join(const std::string& host) {
    const auto node =
        std::ranges::find(orders_.run_nodes, host, &RunNode::host);
    if (node == orders_.run_nodes.end()) {
      return Error(ErrorCode::kInternal, host + " is no node of this run");
    }
    LOCKSTEP_ASSIGN(
        const auto session,
        reach::reach(host, reach_options(ssh_words(folder_))));
    LOCKSTEP_TRY(prepare(*session, *node));
    launch::AgentSpec spec;
    spec.run_id = run_.id();
    spec.key = orders_.run_key;
    spec.node = static_cast<int>(node - orders_.run_nodes.begin());
    spec.head_addresses = orders_.addresses;
    spec.folder = node->folder;
    spec.spot = node->spot;
    LOCKSTEP_TRY(session->call(
        "agent",
        {{"spec", launch::to_json(spec)}},
        os::Deadline::after(kAgentAnswer)));
    return {};
  }

  // What this machine was sent goes on to the new one, to the same paths.
  Result<void> prepare(reach::Session& session, const RunNode& node) {
    const auto same = [&](const os::Path& there,
                          const os::Path& expected) -> Result<void> {
      if (there != expected) {
        return Error(
            ErrorCode::kUnavailable,
            fmt::format(
                "{}: {} lies at {} there; all nodes need one home",
                node.host,
                expected.string(),
                there.string()));
      }
      return {};
    };
    // One that is elsewhere is of the image (LOCKSTEP_TRAINER_REMOTE).
    if (node.trainer.string().starts_with(
            (reach::lockstep_home() / "sets/").string())) {
      LOCKSTEP_ASSIGN(const auto set, reach::placed_set(node.trainer));
      LOCKSTEP_ASSIGN(const os::Path there, reach::send_program(session, set));
      LOCKSTEP_TRY(same(there, node.trainer));
    }
    LOCKSTEP_ASSIGN(
        const os::Path workdir, reach::pass_on_folder(session, node.workdir));
    LOCKSTEP_TRY(same(workdir, node.workdir));
    for (const PlacedMount& mount : orders_.mounts) {
      LOCKSTEP_TRY(
          reach::pass_on_folder(
              session, reach::placed_folder_of(mount.target)));
      LOCKSTEP_TRY(session.call(
          "mount",
          {{"target", mount.target.string()},
           {"name", mount.name},
           {"workdir", workdir.string()}},
          os::Deadline::after(kAnswer)));
    }
    if (orders_.setup.empty()) {
      return {};
    }
    std::string words;
    return reach::run_setup(
        session,
        workdir,
        orders_.setup,
        words,
        os::Deadline::after(kSetupAnswer));
  }

  const record::RunDirectory run_;
  Orders orders_;
  const os::Path folder_;
  std::atomic<bool> is_over_ = false;
  OpenCluster open_;
  std::unique_ptr<fleet::Fleet> fleet_;
  std::unique_ptr<SpotRenter> renter_;
};

// Unbuffered: what follows the orders is for poll.
std::string input_line() {
  std::string text;
  for (char c = 0; ::read(STDIN_FILENO, &c, 1) == 1 && c != '\n';) {
    text += c;
  }
  return text;
}

Result<void> rent_beside(const os::Path& directory, const json& value) {
  LOCKSTEP_ASSIGN(Orders orders, read_orders(value));
  // Before any thread is there.
  for (const auto& [name, text] : orders.environment) {
    ::setenv(name.c_str(), text.c_str(), 1);
  }
  LOCKSTEP_ASSIGN(auto run, record::RunDirectory::existing(directory));
  HeadRenter renter(std::move(run), std::move(orders));
  LOCKSTEP_TRY(renter.begin());
  renter.work();
  return {};
}

}  // namespace

int renter_main() {
  ::signal(SIGPIPE, SIG_IGN);
  init_log({});
  const os::Path directory = input_line();
  const json orders = json::parse(input_line(), nullptr, false);
  if (!orders.is_object()) {
    log_error("renter: no orders came");
    return 2;
  }
  const auto done = rent_beside(directory, orders);
  if (!done) {
    log_error(done.error().to_string());
  }
  return done ? 0 : 1;
}

}  // namespace lockstep::commands
