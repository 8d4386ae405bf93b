#pragma once

// What the verbs of clusters share: where a cluster is known on this machine,
// the cloud it is in, its nodes, and ssh to them. A cluster has a folder of its
// own (journal, key, known hosts, an ssh config in which its nodes have their
// names); everything else is asked of the cloud by tag.

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cloud/ec2/ec2.h"
#include "lockstep/cloud/ec2/pricing.h"
#include "lockstep/commands/command.h"
#include "lockstep/fleet/fleet.h"
#include "lockstep/launch/stop_signals.h"

namespace lockstep::commands {

// ~/.local/state/lockstep/clusters, or below XDG_STATE_HOME.
os::Path clusters_folder();
std::vector<std::string> known_clusters();
// What the journal says was wanted; none: not known here, or down.
Result<std::optional<fleet::Cluster>> known_cluster(const std::string& name);

// The cloud of one region, with prices.
struct CloudAccess {
  std::unique_ptr<fetch::AwsClient> client;
  std::unique_ptr<cloud::ec2::Ec2> provider;
  std::unique_ptr<cloud::ec2::ApiPrices> api;
  std::optional<cloud::UserPrices> mine;
  std::optional<cloud::PriceTable> table;
  cloud::PriceBook book;
};
Result<std::unique_ptr<CloudAccess>> open_cloud(
    const std::string& region,
    const Settings& settings);

// The region of a cluster: its own, the option's, the user's.
Result<std::string> region_of(
    const std::optional<fleet::Cluster>& cluster,
    const std::string& option,
    const Settings& settings);

// The system's ssh, through the cluster's config, no connection shared: what
// runs on a node ends with us.
class ClusterShell : public fleet::NodeShell {
 public:
  explicit ClusterShell(os::Path folder) : folder_(std::move(folder)) {}
  Result<std::string> run(
      const fleet::Node& node,
      const std::string& script,
      os::Deadline deadline) override;
  // ssh up to the host.
  std::vector<std::string> ssh() const;

 private:
  os::Path folder_;
};

os::Path ssh_config_file(const os::Path& folder);
// From inside their network nodes are reached by their private addresses: the
// group that is made lets in nodes by these alone.
enum class ReachedFrom { kOutside, kInside };
// Names of the nodes, for ssh -F; ~/.ssh/config stays in force behind it.
Result<void> write_ssh_config(
    const os::Path& folder,
    const os::Path& key,
    const std::vector<fleet::Node>& nodes,
    ReachedFrom from = ReachedFrom::kOutside);

// The cluster's private key: the user's, which others must not be able to read,
// or one that is made. And its public line.
struct ClusterKey {
  os::Path file;
  std::string public_line;
};
os::Path key_file(const fleet::Cluster& cluster, const os::Path& folder);
Result<ClusterKey> cluster_key(
    const fleet::Cluster& cluster,
    const os::Path& folder);

// Of the cluster, else this machine's address as the internet sees it.
Result<std::vector<std::string>> ssh_ranges(const fleet::Cluster& cluster);

// A cluster that a verb works with: known here or by tag alone.
struct OpenCluster {
  std::string name;
  os::Path folder;
  std::string region;
  std::optional<fleet::Cluster> spec;
  std::unique_ptr<CloudAccess> cloud;
  std::unique_ptr<fleet::Journal> journal;  // with its lock; where asked
  std::unique_ptr<ClusterShell> shell;
  fleet::FleetOptions options() const;
};
Result<OpenCluster> open_cluster(
    const std::string& name,
    const std::string& region_option,
    const Settings& settings,
    bool with_lock);
// Its living nodes, the ssh config renewed; an error when there are none. For
// verbs that go to nodes: the key must be here.
Result<std::vector<fleet::Node>> reachable_nodes(const OpenCluster& cluster);

// Ctrl-C as a question that any thread may ask. Make it before any thread.
class Interrupt {
 public:
  bool happened();
  // Work before anything is made, which it ends at once, also where nobody
  // asks: a question to the user, a cloud that does not answer. `clean` comes
  // before the exit.
  Result<void> during(
      const std::function<Result<void>()>& action,
      const std::function<void()>& clean = {});

 private:
  launch::StopSignals signals_;
  std::mutex mutex_;
  std::atomic<bool> happened_ = false;
};

// LOCKSTEP_FLEET_STOP=before:N or after:N: this process kills itself around
// record N of the journal. For tests of crashes.
fleet::JournalOptions journal_options(const os::Path& folder);

}  // namespace lockstep::commands
