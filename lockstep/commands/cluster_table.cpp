#include "lockstep/commands/cluster_table.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/commands/cloud_access.h"
#include "lockstep/commands/table.h"

namespace lockstep::commands {
namespace {

std::string hourly_words(Money money) {
  return fmt::format("${:.4f}", money.dollars());
}

Result<int> print_ready(
    const std::vector<fleet::Node>& nodes,
    const fleet::Cluster& cluster,
    OutputFormat format) {
  std::vector<NodeRow> rows;
  const double now = os::real_clock().unix_seconds();
  for (const fleet::Node& node : nodes) {
    NodeRow row;
    row.node = node;
    row.cluster = cluster.name;
    row.region = cluster.region;
    row.cost = fleet::billed(
        node.hourly, from_seconds(std::max(0.0, now - node.instance.launched)));
    rows.push_back(std::move(row));
  }
  print_nodes(rows, format);
  return 0;
}

// A cluster is in one region: another file of the same name must not make this
// machine forget the one that is up.
Result<void> check_region(
    const OpenCluster& open,
    const fleet::Cluster& cluster,
    const Settings& settings) {
  if (!open.spec || open.spec->region == cluster.region) {
    return {};
  }
  const std::string& before = open.spec->region;
  LOCKSTEP_ASSIGN(const auto cloud, open_cloud(before, settings));
  LOCKSTEP_ASSIGN(
      const auto there, fleet::live_nodes(*cloud->provider, cluster.name));
  if (there.empty()) {
    return {};
  }
  return Error(
             ErrorCode::kExists,
             fmt::format(
                 "cluster '{}' is up in {}, and {} is named",
                 cluster.name,
                 before,
                 cluster.region))
      .with_fix(
          fmt::format(
              "lockstep down {}, or give this one another name: --name N",
              cluster.name));
}

}  // namespace

void show_plan(const fleet::Cluster& cluster, const fleet::Plan& plan) {
  Table table(
      {"type", "nodes", "market", "an hour each", "price of", "quota left"});
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    const fleet::NodeGroup& group = cluster.groups[i];
    const fleet::GroupPlan& one = plan.groups[i];
    const fleet::Place& first = one.places.front();
    const auto& price = one.price;
    table.add(
        {group.type,
         group.minimum == group.count
             ? fmt::format("{}", group.count)
             : fmt::format("{} to {}", group.minimum, group.count),
         group.use_spot == fleet::UseSpot::kAuto
             ? "spot, else on-demand"
             : std::string(to_string(first.where.market)),
         first.hourly ? hourly_words(*first.hourly) : "unknown",
         price ? fmt::format(
                     "{}, {} old",
                     to_string(price->source),
                     age_text(os::real_clock().unix_seconds() - price->as_of))
               : "-",
         one.quota ? fmt::format("{} {}", one.quota->left(), one.quota->unit)
                   : "unknown"});
  }
  std::string text = fmt::format(
      "cluster {} in {}, {} nodes\n{}",
      cluster.name,
      cluster.region,
      cluster.num_nodes(),
      table.to_string());
  text += plan.price_known
              ? fmt::format(
                    "together {} an hour with disks", hourly_words(plan.hourly))
              : "together: not all prices are known";
  if (plan.price_known && plan.hourly_most > plan.hourly) {
    text += fmt::format(", at most {}", hourly_words(plan.hourly_most));
  }
  if (plan.longest_life) {
    text += fmt::format(
        "; ended after {} at the latest", format_duration(*plan.longest_life));
    if (plan.price_known) {
      text += fmt::format(
          ": at most {} in all",
          format_money(fleet::billed(plan.hourly_most, *plan.longest_life)));
    }
  } else {
    text += "; no budget and no max_duration";
  }
  text += fmt::format(
      "\ngiven back after {} without a run or an ssh session\n",
      format_duration(cluster.idle));
  std::fputs(text.c_str(), stderr);
  for (const std::string& note : plan.notes) {
    log_warning(note);
  }
}

void print_rented_plan(
    const launch::Job& job,
    const fleet::Cluster& cluster,
    const fleet::Plan& plan,
    OutputFormat format) {
  if (format == OutputFormat::kTable) {
    fmt::print("{}\n", launch::job_yaml(job));
  }
  if (format != OutputFormat::kJson) {
    return;
  }
  nlohmann::json told = {
      {"job", launch::job_yaml(job)},
      {"cluster", cluster.name},
      {"region", cluster.region},
      {"nodes", cluster.num_nodes()},
      {"types", nlohmann::json::array()},
      {"dollars_per_hour", nullptr},
      {"most_seconds", nullptr},
      {"most_dollars", nullptr}};
  for (const fleet::NodeGroup& group : cluster.groups) {
    told["types"].push_back({{"type", group.type}, {"nodes", group.count}});
  }
  if (plan.price_known) {
    told["dollars_per_hour"] = plan.hourly.dollars();
  }
  if (plan.longest_life) {
    told["most_seconds"] = to_seconds(*plan.longest_life);
  }
  if (plan.price_known && plan.longest_life) {
    told["most_dollars"] =
        fleet::billed(plan.hourly_most, *plan.longest_life).dollars();
  }
  fmt::print(
      "{}\n",
      told.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

std::string bill(const fleet::ClusterCost& cost) {
  std::string text = fmt::format("${:.4f} in all", cost.so_far.dollars());
  if (cost.traffic.dollars() >= 0.0001) {
    text += fmt::format(", ${:.4f} of it for traffic", cost.traffic.dollars());
  }
  return text;
}

Result<bool> may_proceed(bool yes) {
  if (yes) {
    return true;
  }
  if (::isatty(STDIN_FILENO) == 0) {
    return Error(
               ErrorCode::kInvalidInput,
               "this costs money, and nobody is there to be asked")
        .with_fix("give -y");
  }
  std::fputs("Proceed? [Y/n] ", stderr);
  std::string answer;
  if (!std::getline(std::cin, answer)) {
    return false;
  }
  const std::string word = lower(trim(answer));
  return word.empty() || word == "y" || word == "yes";
}

void print_nodes(const std::vector<NodeRow>& rows, OutputFormat format) {
  const double now = os::real_clock().unix_seconds();
  nlohmann::json all = nlohmann::json::array();
  Table table(
      {"node",
       "type",
       "market",
       "zone",
       "state",
       "address",
       "an hour",
       "age",
       "lease left",
       "cost so far"});
  Money sum, rate;
  int unknown = 0;
  for (const NodeRow& row : rows) {
    unknown += row.node.price_known ? 0 : 1;
    const cloud::Instance& one = row.node.instance;
    const double age = std::max(0.0, now - one.launched);
    if (format == OutputFormat::kQuiet) {
      fmt::print("{}\n", row.node.name);
    }
    sum = sum + row.cost;
    rate = rate + row.node.hourly;
    nlohmann::json told = {
        {"node", row.node.name},
        {"cluster", row.cluster},
        {"region", row.region},
        {"id", one.id},
        {"type", one.type},
        {"market", to_string(one.market)},
        {"zone", one.zone},
        {"state", to_string(one.state)},
        {"address", row.node.address()},
        {"user", row.node.user},
        {"launched", one.launched},
        {"age_seconds", age},
        {"dollars_per_hour", nullptr},
        {"lease_left_seconds", nullptr},
        {"cost", nullptr}};
    if (row.node.price_known) {
      told["dollars_per_hour"] = row.node.hourly.dollars();
      told["cost"] = row.cost.dollars();
    }
    if (row.lease_left) {
      told["lease_left_seconds"] = to_seconds(*row.lease_left);
    }
    all.push_back(std::move(told));
    table.add(
        {row.node.name,
         one.type,
         std::string(to_string(one.market)),
         one.zone,
         std::string(to_string(one.state)),
         row.node.address().empty() ? "-" : row.node.address(),
         row.node.price_known ? hourly_words(row.node.hourly) : "unknown",
         age_text(age),
         row.lease_left ? age_text(to_seconds(*row.lease_left)) : "-",
         row.node.price_known ? hourly_words(row.cost) : "unknown"});
  }
  if (format == OutputFormat::kJson) {
    fmt::print(
        "{}\n",
        all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else if (format == OutputFormat::kTable && !table.empty()) {
    fmt::print("{}", table.to_string());
    fmt::print(
        "{} nodes, {} an hour, {} so far{}\n",
        rows.size(),
        hourly_words(rate),
        format_money(sum),
        unknown > 0 ? fmt::format("; {} of unknown price", unknown) : "");
  }
}

Result<int> bring_up(
    const fleet::Cluster& cluster,
    const Settings& settings,
    bool yes,
    Interrupt& interrupt,
    OutputFormat format) {
  const os::Path folder = clusters_folder() / cluster.name;
  LOCKSTEP_ASSIGN(
      OpenCluster open,
      open_cluster(cluster.name, cluster.region, settings, true));
  // Under the lock: another `up` may be making it.
  LOCKSTEP_ASSIGN(const ClusterKey key, cluster_key(cluster, folder));
  fleet::Plan plan;
  bool is_wanted = false;
  const auto look = [&]() -> Result<void> {
    LOCKSTEP_TRY(check_region(open, cluster, settings));
    std::vector<int> have(cluster.groups.size());
    LOCKSTEP_ASSIGN(
        const auto there,
        fleet::live_nodes(*open.cloud->provider, cluster.name));
    for (const fleet::Cluster::Wanted& one : cluster.wanted()) {
      have[one.group] += static_cast<int>(
          std::ranges::count(there, one.node, &fleet::Node::name));
    }
    LOCKSTEP_ASSIGN(
        plan,
        fleet::make_plan(
            *open.cloud->provider, open.cloud->book, cluster, have));
    show_plan(cluster, plan);
    LOCKSTEP_ASSIGN(is_wanted, may_proceed(yes));
    return {};
  };
  LOCKSTEP_TRY(interrupt.during(look));
  if (!is_wanted) {
    std::fputs("nothing was made\n", stderr);
    return 0;
  }
  fleet::FleetOptions options = open.options();
  LOCKSTEP_ASSIGN(options.ssh_from, ssh_ranges(cluster));
  options.public_key = key.public_line;
  options.stopped = [&interrupt] { return interrupt.happened(); };
  options.addressed = [&](const std::vector<fleet::Node>& nodes) {
    return write_ssh_config(folder, key.file, nodes);
  };
  fleet::Fleet fleet(std::move(options));
  LOCKSTEP_ASSIGN(const auto nodes, fleet.acquire(cluster, plan));
  return print_ready(nodes, cluster, format);
}

}  // namespace lockstep::commands
