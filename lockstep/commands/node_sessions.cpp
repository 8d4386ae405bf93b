#include "lockstep/commands/node_sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "lockstep/base/log.h"
#include "lockstep/base/nearest.h"
#include "lockstep/base/to_stderr.h"

namespace lockstep::commands {

Result<std::vector<fleet::Node>> chosen_nodes(
    const std::vector<fleet::Node>& nodes,
    const std::vector<std::string>& names) {
  if (names.empty()) {
    return nodes;
  }
  std::vector<std::string> there;
  std::ranges::transform(nodes, std::back_inserter(there), &fleet::Node::name);
  std::vector<fleet::Node> chosen;
  for (const std::string& name : names) {
    const auto found = std::ranges::find_if(nodes, [&](const auto& node) {
      // "0" is short for "blue-0".
      return node.name == name || node.name.ends_with("-" + name);
    });
    if (found == nodes.end()) {
      return Error(
          ErrorCode::kNotFound,
          fmt::format("no node '{}'; {}", name, suggest(name, there)));
    }
    if (std::ranges::count(chosen, found->name, &fleet::Node::name) == 0) {
      chosen.push_back(*found);
    }
  }
  return chosen;
}

Result<std::string> cluster_of_node(const std::string& node) {
  const size_t dash = node.rfind('-');
  if (dash == std::string::npos || dash == 0 || dash + 1 == node.size()) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format("'{}' is no node; accepted: blue-0, ...", node))
        .with_fix("'lockstep status' lists the nodes");
  }
  return node.substr(0, dash);
}

KeepAwake::KeepAwake(
    const OpenCluster& cluster,
    std::vector<fleet::Node> nodes) {
  const Duration idle = cluster.spec->idle;
  fleet::NodeShell* shell = cluster.shell.get();
  thread_ = std::thread([this, idle, shell, nodes = std::move(nodes)] {
    std::unique_lock lock(mutex_);
    while (!is_over_) {
      lock.unlock();
      const auto renewed = fleet::renew_leases(
          *shell, nodes, idle, os::Deadline::after(std::chrono::seconds(15)));
      if (!renewed) {
        log_debug(renewed.error().to_string());
      }
      lock.lock();
      changed_.wait_for(lock, idle / 3, [&] { return is_over_; });
    }
  });
}

KeepAwake::~KeepAwake() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

Result<os::ExitStatus> ssh_here(
    const OpenCluster& cluster,
    const fleet::Node& node,
    const std::vector<std::string>& options,
    const std::vector<std::string>& words,
    std::array<int, 3> standard) {
  os::SpawnOptions spawn;
  spawn.argv = cluster.shell->ssh();
  spawn.argv.insert(spawn.argv.end(), options.begin(), options.end());
  spawn.argv.push_back(node.name);
  std::string command;
  for (const std::string& word : words) {
    command += (command.empty() ? "" : " ") + word;
  }
  if (!command.empty()) {
    spawn.argv.push_back(command);
  }
  spawn.environment = os::environment();
  spawn.new_group = false;
  spawn.die_with_parent = true;
  spawn.standard = standard;
  LOCKSTEP_ASSIGN(const auto process, os::real_processes().spawn(spawn));
  return process->wait(os::Deadline::never());
}

std::string shell_word(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

Result<int> on_nodes(
    const std::vector<fleet::Node>& nodes,
    const std::function<Result<os::ExitStatus>(const fleet::Node&)>& action) {
  std::vector<std::string> failed(nodes.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < nodes.size(); ++i) {
    threads.emplace_back([&, i] {
      auto status = action(nodes[i]);
      if (!status) {
        failed[i] = status.error().to_string();
      } else if (!status->ok()) {
        failed[i] = status->to_string();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  int code = 0;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (!failed[i].empty()) {
      code = 1;
      to_stderr("lockstep: {}: {}\n", nodes[i].name, failed[i]);
    }
  }
  return code;
}

}  // namespace lockstep::commands
