#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <set>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/commands/cloud_access.h"
#include "lockstep/commands/cluster_table.h"
#include "lockstep/commands/command.h"

namespace lockstep::commands {
namespace {

// More are not asked one by one for their leases.
constexpr size_t kMostAsked = 64;

struct StatusOptions {
  std::string cluster;
  std::vector<std::string> regions;
  bool no_lease = false;
};

struct RegionNodes {
  std::string region;
  std::vector<NodeRow> rows;
  std::optional<Error> error;
};

Result<void> look_at_region(RegionNodes& region, const std::string& cluster) {
  LOCKSTEP_ASSIGN(const auto client, open_aws(region.region));
  cloud::ec2::Ec2 ec2({.client = client.get(), .region = region.region});
  LOCKSTEP_ASSIGN(
      const auto instances,
      ec2.instances(
          {.tags = {{std::string(cloud::kClusterTag), cluster}}, .ids = {}}));
  const double now = os::real_clock().unix_seconds();
  for (const cloud::Instance& one : instances) {
    if (!one.is_live()) {
      continue;
    }
    NodeRow row;
    row.node = fleet::node_of(one);
    row.cluster = fleet::tag_of(one.tags, cloud::kClusterTag);
    row.region = region.region;
    row.cost = fleet::billed(
        row.node.hourly, from_seconds(std::max(0.0, now - one.launched)));
    region.rows.push_back(std::move(row));
  }
  std::ranges::sort(region.rows, {}, [](const NodeRow& row) {
    return std::tuple(row.cluster, row.node.name.size(), row.node.name);
  });
  return {};
}

// Those of clusters that were made here, side by side.
void ask_leases(std::vector<NodeRow>& rows) {
  std::map<std::string, std::vector<size_t>> by_cluster;
  for (size_t i = 0; i < rows.size(); ++i) {
    by_cluster[rows[i].cluster].push_back(i);
  }
  std::vector<std::thread> threads;
  std::vector<std::unique_ptr<ClusterShell>> shells;
  for (const auto& [name, indices] : by_cluster) {
    const auto spec = known_cluster(name);
    const os::Path folder = clusters_folder() / name;
    if (!spec || !*spec) {
      continue;
    }
    std::vector<fleet::Node> nodes;
    for (const size_t i : indices) {
      nodes.push_back(rows[i].node);
    }
    const os::Path key = key_file(**spec, folder);
    if (!write_ssh_config(folder, key, nodes)) {
      continue;
    }
    shells.push_back(std::make_unique<ClusterShell>(folder));
    for (const size_t i : indices) {
      threads.emplace_back([&row = rows[i], shell = shells.back().get()] {
        const auto lease = fleet::look_at_lease(
            *shell, row.node, os::Deadline::after(std::chrono::seconds(8)));
        if (lease) {
          row.lease_left = lease->left;
        }
      });
    }
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

Result<int> status(const StatusOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(auto names, chosen_regions(options.regions, settings));
  std::set<std::string> regions(names.begin(), names.end());
  if (options.regions.empty()) {
    for (const std::string& name : known_clusters()) {
      const auto cluster = known_cluster(name);
      if (cluster && *cluster &&
          (options.cluster.empty() || options.cluster == name)) {
        regions.insert((*cluster)->region);
      }
    }
  }
  if (regions.empty()) {
    return Error(ErrorCode::kInvalidInput, "no region is named")
        .with_fix("give --region, or set AWS_REGION");
  }
  std::vector<RegionNodes> found;
  for (const std::string& name : regions) {
    found.push_back({name, {}, {}});
  }
  std::vector<std::thread> threads;
  for (RegionNodes& one : found) {
    threads.emplace_back([&one, &options] {
      if (auto done = look_at_region(one, options.cluster); !done) {
        one.error = std::move(done.error());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<NodeRow> rows;
  std::optional<Error> first;
  for (RegionNodes& one : found) {
    std::ranges::move(one.rows, std::back_inserter(rows));
    if (one.error && !first) {
      first = std::move(*one.error).with_context("looking at " + one.region);
    }
  }
  if (!options.no_lease && rows.size() <= kMostAsked) {
    ask_leases(rows);
  }
  print_nodes(rows, context.format());
  if (first) {
    return Error(std::move(*first));
  }
  if (rows.empty() && context.format() == OutputFormat::kTable) {
    fmt::print(
        "no machines{}{}\n",
        options.cluster.empty() ? "" : " of ",
        options.cluster);
  }
  return 0;
}

}  // namespace

void add_status(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "status", "rented machines: price, age, lease left, cost so far");
  verb->footer("Example: lockstep status blue");
  auto options = std::make_shared<StatusOptions>();
  verb->add_option("cluster", options->cluster, "one alone")
      ->type_name("CLUSTER");
  verb->add_option("--region", options->regions, "of the cloud; a,b: several")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("R");
  verb->add_flag(
      "--no-lease", options->no_lease, "do not ask the nodes by ssh");
  set_action(*verb, context, [&context, options]() {
    return status(*options, context);
  });
}

}  // namespace lockstep::commands
