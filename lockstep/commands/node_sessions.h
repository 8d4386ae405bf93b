#pragma once

// Work on the nodes of a cluster through ssh, while which none of them goes
// idle: use of one is use of all.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/commands/cluster_access.h"
#include "lockstep/os/process.h"

namespace lockstep::commands {

// The nodes that are meant: all, or those named. The error names near ones.
Result<std::vector<fleet::Node>> chosen_nodes(
    const std::vector<fleet::Node>& nodes,
    const std::vector<std::string>& names);

// "blue" of "blue-0" and "blue-b12"; an error for what is no node's name.
Result<std::string> cluster_of_node(const std::string& node);

// Renews the leases of all nodes now and then, until it is destroyed.
class KeepAwake {
 public:
  KeepAwake(const OpenCluster& cluster, std::vector<fleet::Node> nodes);
  ~KeepAwake();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

// ssh NODE with these words, our own standard streams.
Result<os::ExitStatus> ssh_here(
    const OpenCluster& cluster,
    const fleet::Node& node,
    const std::vector<std::string>& options,
    const std::vector<std::string>& words,
    std::array<int, 3> standard = {0, 1, 2});

// A word for the shell of the node.
std::string shell_word(const std::string& text);

// The action on each node side by side; exit code 0 when all gave 0, else 1,
// the failures on stderr.
Result<int> on_nodes(
    const std::vector<fleet::Node>& nodes,
    const std::function<Result<os::ExitStatus>(const fleet::Node&)>& action);

}  // namespace lockstep::commands
