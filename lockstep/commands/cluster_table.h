#pragma once

// What verbs of clusters show and ask: the price before, the nodes after. And
// the way from a cluster that is wanted to one that is there, for `up` and
// `scale`.

#include <string>
#include <vector>

#include "lockstep/commands/cluster_access.h"
#include "lockstep/launch/job.h"

namespace lockstep::commands {

// Type, market, dollars an hour, quota, and what it can come to, on stderr.
void show_plan(const fleet::Cluster& cluster, const fleet::Plan& plan);

// What --dry-run prints of a run on machines that would be rented, on stdout.
void print_rented_plan(
    const launch::Job& job,
    const fleet::Cluster& cluster,
    const fleet::Plan& plan,
    OutputFormat format);

// "Proceed? [Y/n]"; without a terminal only `yes` is an answer.
Result<bool> may_proceed(bool yes);

// "$0.0421 in all, $0.0012 of it for traffic".
std::string bill(const fleet::ClusterCost& cost);

struct NodeRow {
  fleet::Node node;
  std::string cluster;
  std::string region;
  std::optional<Duration> lease_left;
  Money cost;
};
void print_nodes(const std::vector<NodeRow>& rows, OutputFormat format);

// Plan, price, question, machines, table.
Result<int> bring_up(
    const fleet::Cluster& cluster,
    const Settings& settings,
    bool yes,
    Interrupt& interrupt,
    OutputFormat format);

}  // namespace lockstep::commands
