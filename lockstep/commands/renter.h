#pragma once

// `lockstep renter`: rents machines in place of those that the cloud took away,
// on the head, with the keys of the head's role, while the user's machine is
// off or away (launch/companion.h starts it). It does what `lockstep run` does
// there, with the same parts: it follows the events of the run (Replacements),
// rents by the plan that the user agreed to (SpotRenter, over a journal of its
// own) and has the new machine join; the cloud, by tag, says what lives, so a
// machine that the client had launched is taken up and not doubled. It begins
// once the client was silent for a while (launch/renting.h) and then stays.
// What a new machine needs (workdir, mounts, trainer, set-up) comes from the
// head, which was sent it. The cluster's private key lies in a folder of mode
// 0700 below the head's home while the run lasts. Failures are told in
// renter.log and tried again; nothing else depends on them.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/commands/cluster_access.h"
#include "lockstep/commands/far_nodes.h"

namespace lockstep::commands {

// How long the user's machine may be silent: 30 s; LOCKSTEP_AWAY says
// otherwise.
Duration away_time();

struct RentingTerms {
  const fleet::Cluster& cluster;
  const fleet::Plan& plan;
  const std::vector<fleet::Node>& nodes;  // as they were rented
  double since = 0;                       // Unix seconds: from when they cost
  const ClusterKey& key;
};

// Why the head may not rent, for the user; empty: it may. The user's own key
// never leaves this machine.
std::string why_not_on_head(
    const fleet::Cluster& cluster,
    const std::string& launcher);

// One line for launch::HeadSpec: it holds the cluster's private key, so that
// standard input and ssh alone may carry it.
Result<std::string> renter_orders(const RentingTerms& terms);

// With what `file_mounts` brought to the head.
std::string with_mounts(
    const std::string& orders,
    const std::vector<PlacedMount>& mounts);

// Reads the run directory and the orders, a line each; ends with its standard
// input, after what was on its way is given back.
int renter_main();

}  // namespace lockstep::commands
