#include "lockstep/commands/run_machines.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "lockstep/base/id.h"
#include "lockstep/base/log.h"
#include "lockstep/base/to_stderr.h"
#include "lockstep/cloud/catalogue.h"
#include "lockstep/commands/costs.h"
#include "lockstep/commands/interruptible.h"
#include "lockstep/launch/detached.h"

namespace lockstep::commands {
namespace {

constexpr const char* kLeftBehind = "LOCKSTEP_LEFT_BEHIND";

// "my-job-x7k2f9": letters, digits and dashes, a letter first.
std::string cluster_name(const std::string& job) {
  constexpr size_t kMost = 28;
  const std::string id = make_run_id(job, 0);
  std::string name;
  for (const char c : id.substr(0, id.size() - 23)) {
    const bool is_good = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (is_good || (!name.empty() && !name.ends_with('-'))) {
      name += is_good ? c : '-';
    }
  }
  if (name.empty() || name.front() < 'a') {
    name = "run-" + name;
  }
  name.resize(std::min(name.size(), kMost));
  while (name.ends_with('-')) {
    name.pop_back();
  }
  return name + id.substr(id.rfind('-'));
}

config::Node text_node(const std::string& text) {
  return config::Node::scalar(text, {"resources", 0}, true);
}

config::Node list_node(const std::vector<std::string>& items) {
  config::Node list = config::Node::list({"resources", 0});
  for (const std::string& item : items) {
    list.append(text_node(item));
  }
  return list;
}

}  // namespace

Result<RunOrder> within_cap(const RunOrder& order) {
  RunOrder capped = order;
  LOCKSTEP_ASSIGN(const auto left, check_cap(order.settings));
  std::optional<Money>& budget = capped.priced.job.budget;
  if (left && (!budget || *left < *budget)) {
    log_info(
        fmt::format(
            "your cap of {} leaves {}: this run's budget",
            format_money(*order.settings.cap),
            format_money(*left)));
    budget = left;
  }
  return capped;
}

Result<RunOrder> with_type(const RunOrder& order) {
  RunOrder chosen = order;
  auto& resources = chosen.priced.job.resources;
  LOCKSTEP_ASSIGN(
      const cloud::MachineWish wish,
      cloud::parse_wish(
          resources.cpus, resources.memory, resources.accelerators));
  if (wish.is_empty()) {
    return chosen;
  }
  // What no machine has is said before anybody is asked.
  LOCKSTEP_TRY(cloud::Catalogue::shipped().matching(wish));
  LOCKSTEP_ASSIGN(
      const std::string region,
      region_of({}, resources.region, order.settings));
  LOCKSTEP_ASSIGN(const auto access, open_cloud(region, order.settings));
  const bool is_spot =
      resources.use_spot == "true" || resources.use_spot == "auto";
  LOCKSTEP_ASSIGN(
      const cloud::Chosen found,
      cloud::choose_cheapest(
          *access->provider,
          access->book,
          cloud::Catalogue::shipped(),
          wish,
          is_spot ? cloud::Market::kSpot : cloud::Market::kOnDemand));
  to_stderr(
      "{}: the cheapest known type with {}\n",
      found.offer.type,
      wish.to_string());
  resources.instance_type = found.offer.type;
  resources.cpus.clear();
  resources.memory.clear();
  resources.accelerators.clear();
  return chosen;
}

Result<fleet::Cluster> cluster_of(
    const RunOrder& order,
    const Settings& settings) {
  const launch::Job& job = order.priced.job;
  const auto& resources = job.resources;
  std::vector<std::string> types = resources.candidates;
  if (!resources.instance_type.empty()) {
    std::erase(types, resources.instance_type);
    types.insert(types.begin(), resources.instance_type);
  }
  config::Node group = config::Node::map({"resources", 0});
  const int count = order.options.nodes.value_or(job.num_nodes.value_or(1));
  group.set("count", text_node(std::to_string(count)));
  if (!resources.use_spot.empty()) {
    group.set("use_spot", text_node(resources.use_spot));
  }
  if (types.size() > 1) {
    group.set("fallback", list_node({types.begin() + 1, types.end()}));
  }
  config::Node nodes = config::Node::map({"resources", 0});
  config::Node file = config::Node::map({"resources", 0});
  file.set("name", text_node(cluster_name(job.name)));
  for (const auto& [key, value] : resources.machine) {
    if (!value.is_null()) {
      (key == "bid" ? group : file).set(key, value);
    }
  }
  nodes.set(types.front(), std::move(group));
  file.set("nodes", std::move(nodes));
  if (!resources.image_id.empty()) {
    file.set("image_id", text_node(resources.image_id));
  }
  if (!resources.region.empty()) {
    file.set("region", text_node(resources.region));
  }
  LOCKSTEP_ASSIGN(
      fleet::Cluster cluster,
      fleet::read_cluster(file).with_context("resources"));
  cluster.budget = job.budget;
  cluster.head_on_demand = count > 1;
  cluster.max_duration = job.max_duration;
  LOCKSTEP_ASSIGN(cluster.region, region_of(cluster, "", settings));
  if (cluster.key.empty()) {
    cluster.key = settings.key;
  }
  if (!cluster.key.empty()) {
    cluster.key = key_file(cluster, "").string();
  }
  return cluster;
}

std::vector<std::string> ssh_words(const os::Path& folder) {
  return {"-F", ssh_config_file(folder).string()};
}

RunOrder order_on(
    const RunOrder& order,
    const std::vector<fleet::Node>& nodes,
    const os::Path& folder,
    Rented& rented) {
  RunOrder there = order;
  there.rented = &rented;
  auto& resources = there.priced.job.resources;
  const std::vector<std::string> words = ssh_words(folder);
  resources.ssh_options.insert(
      resources.ssh_options.begin(), words.begin(), words.end());
  Money sum;
  bool is_known = true;
  for (const fleet::Node& node : nodes) {
    there.hosts.push_back({node.name, {}});
    sum = sum + node.hourly;
    is_known = is_known && node.price_known;
  }
  const bool is_said = order.options.price || order.priced.job.resources.price;
  if (!is_said) {
    there.priced.price.reset();
    there.priced.source.clear();
    if (is_known && !nodes.empty()) {
      there.priced.price = sum * (1.0 / static_cast<double>(nodes.size()));
      there.priced.source = "cloud";
    }
  }
  return there;
}

Result<int> leave_behind(const RunOrder& order) {
  std::vector<std::string> words = order.context.words;
  const auto program = std::ranges::find(words, "--");
  words.erase(std::remove(words.begin(), program, "--detach"), program);
  const auto verb = std::ranges::find(words, "run");
  words.insert(verb == words.end() ? verb : verb + 1, "-y");
  words.insert(words.begin(), own_program().string());
  ::setenv(kLeftBehind, "1", 1);
  constexpr auto kPatience = std::chrono::hours(2);
  std::string id;
  launch::StopSignals signals;
  // When we go first it finds nobody to tell, and gives everything back.
  LOCKSTEP_TRY(interruptible(signals, [&]() -> Result<void> {
    auto line =
        launch::start_detached(words, "", os::Deadline::after(kPatience));
    if (!line) {
      return Error(std::move(line.error()));
    }
    id = std::move(*line);
    return {};
  }));
  LOCKSTEP_ASSIGN(const auto run, find_run(order.settings, id));
  print_detached(run, order.settings, order.context.format());
  return 0;
}

bool was_left_behind() {
  return std::getenv(kLeftBehind) != nullptr;
}

void tell_begun(const record::RunDirectory& run) {
  const std::string line = run.id() + "\n";
  if (::write(STDOUT_FILENO, line.data(), line.size()) <= 0) {
    ::kill(::getpid(), SIGTERM);  // nobody waits: stop, store, give back
  }
  const int nothing = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  const int log = ::open(
      (run.path() / "controller.log").c_str(),
      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
      0644);
  ::dup2(nothing, STDOUT_FILENO);
  ::dup2(log >= 0 ? log : nothing, STDERR_FILENO);
}

}  // namespace lockstep::commands
