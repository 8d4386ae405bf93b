#pragma once

// Desired against actual: makes the machines that a cluster wants, and gives
// them back. The cloud, by tag, is the truth; the journal holds what is wanted
// and the steps of which nobody knows how they went. One object stands for one
// cluster and one command; not thread-safe, its work is done side by side
// inside. For `up`, `scale` and `down`, and for `run`, whose cluster has the
// run's name:
//
//   LOCKSTEP_ASSIGN(const Plan plan, make_plan(provider, book, cluster));
//   Fleet fleet({.provider = &provider, .journal = journal.get(), ...});
//   LOCKSTEP_ASSIGN(const auto nodes, fleet.acquire(cluster, plan));
//   ... fleet.renew(nodes, 10min) while it is used, fleet.cost() ...
//   LOCKSTEP_TRY(fleet.release());
//
// What acquire cannot bring to an end it undoes: machines that it launched are
// given back before it returns its error. A crash at any point leaves machines
// that end by their own lease, and a journal from which the next acquire or
// release goes on; no machine is launched twice.

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/cloud/provider.h"
#include "lockstep/fleet/budget.h"
#include "lockstep/fleet/cluster.h"
#include "lockstep/fleet/journal.h"
#include "lockstep/fleet/lease.h"
#include "lockstep/fleet/node.h"
#include "lockstep/fleet/plan.h"

namespace lockstep::fleet {

struct FleetOptions {
  cloud::Provider* provider = nullptr;  // none of these is owned
  Journal* journal = nullptr;
  NodeShell* shell = nullptr;  // none: for release() alone
  os::Clock* clock = &os::real_clock();
  // How far the cloud's clock is ahead of ours, where it is known to be wrong;
  // may be none. Ends and claims are by the cloud's.
  std::function<Duration()> skew;
  std::string cluster;     // its name
  std::string owner;       // "me@laptop", for the tag
  std::string public_key;  // a line of a .pub file
  std::vector<std::string> ssh_from;
  std::function<void(const std::string&)> say;  // progress, a line each
  // Called when nodes have addresses, before any is reached: whoever writes an
  // ssh config does it here.
  std::function<Result<void>(const std::vector<Node>&)> addressed;
  std::function<bool()> stopped;  // Ctrl-C: undo and end
  // The name is nobody else's, and another journal has machines of it too: the
  // client's and the head's of one run.
  bool shares_name = false;
  Duration pause = std::chrono::seconds(2);     // between two looks
  Duration patience = std::chrono::minutes(5);  // until what ends has ended
  size_t side_by_side = 32;
};

struct ClusterCost {
  Money so_far;
  Money traffic;  // of that
  Money hourly;   // of what lives now
  bool known = true;
};

class Fleet {
 public:
  explicit Fleet(FleetOptions options);

  // Nodes that answer, have a running timer and are set up, in the order of
  // Cluster::wanted(); at least each group's minimum. Those that are there
  // already stay; what is there and not wanted is given back. Refused while
  // machines of that name live that the journal does not know (kExists), and
  // when budget or duration leave less for a machine than the least that is
  // billed.
  Result<std::vector<Node>> acquire(const Cluster& cluster, const Plan& plan);
  // What lives, by tag, in the order of names.
  Result<std::vector<Node>> nodes();
  // On the nodes, through the shell.
  Result<void> renew(const std::vector<Node>& nodes, Duration time);
  // All machines end, then what they needed goes: spot requests, disks, key
  // pair, group. Also for a cluster of which only the tag is known.
  Result<void> release();
  // Machines that ended long ago are known by the journal alone.
  Result<ClusterCost> cost();
  // So much has left the machines for the user's: part of the cost.
  Result<void> note_traffic(Bytes bytes);
  // What the journal says was wanted last; none: nothing.
  Result<std::optional<Cluster>> wanted() const;

 private:
  struct Work;
  friend class StayAwake;
  Result<std::vector<Node>> own_nodes();
  Result<ClusterCost> cost_since(double since);
  Result<void> make_access(Work& work);
  Result<void> launch_all(Work& work);
  Result<void> launch_node(Work& work, size_t index, size_t first_place);
  Result<cloud::LaunchOrder> order_of(const Work& work, size_t index);
  Result<void> adopt(Work& work);
  Result<void> wait_ready(Work& work);
  Result<void> set_up(Work& work);
  Result<void> finish_launches(std::vector<std::string>& ids);
  Result<void> end_machines(const std::vector<std::string>& ids);
  Result<void> wait_gone(const std::vector<std::string>& ids);
  void undo(Work& work);
  void say(const std::string& text) const;
  bool is_stopped() const;
  double cloud_time() const;  // Unix seconds, by the cloud's clock
  cloud::Selection selection() const;

  FleetOptions options_;
};

// What lives of a cluster, by tag alone, in the order of names.
Result<std::vector<Node>> live_nodes(
    cloud::Provider& provider,
    const std::string& cluster);

// As the tags of a machine tell it.
Node node_of(const cloud::Instance& instance);

// When a machine ended, by the step "ended" of the journal; Unix seconds. Who
// writes the step may see the end later.
double time_of_end(const JournalStep& ended);

// "lockstep-<cluster>", of key pair and group.
std::string access_name(const std::string& cluster);

}  // namespace lockstep::fleet
