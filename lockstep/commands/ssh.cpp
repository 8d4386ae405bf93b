#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>

#include "lockstep/commands/command.h"
#include "lockstep/commands/node_sessions.h"

namespace lockstep::commands {
namespace {

struct SshOptions {
  std::string node;
  std::string region;
};

Result<int> ssh(const SshOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const std::string name, cluster_of_node(options.node));
  LOCKSTEP_ASSIGN(
      const OpenCluster open,
      open_cluster(name, options.region, settings, false));
  LOCKSTEP_ASSIGN(const auto nodes, reachable_nodes(open));
  LOCKSTEP_ASSIGN(const auto chosen, chosen_nodes(nodes, {options.node}));
  const KeepAwake awake(open, nodes);
  // Its end is the end of what ran there; 255 is ssh's own.
  LOCKSTEP_ASSIGN(
      const os::ExitStatus status,
      ssh_here(
          open,
          chosen.front(),
          context.program.empty() && ::isatty(STDIN_FILENO) == 1
              ? std::vector<std::string>{"-t"}
              : std::vector<std::string>{},
          context.program));
  constexpr int kSshFailed = 255;
  if (status.code == kSshFailed) {
    return Error(
        ErrorCode::kUnavailable, fmt::format("ssh to {} failed", options.node));
  }
  return status.signal != 0 ? 128 + status.signal : status.code;
}

}  // namespace

void add_ssh(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("ssh", "a shell on a node, or one command there");
  verb->footer(
      "Examples: lockstep ssh blue-0\n"
      "          lockstep ssh blue-0 -- nvidia-smi");
  auto options = std::make_shared<SshOptions>();
  verb->add_option("node", options->node, "its name, as status shows it")
      ->required()
      ->type_name("NODE");
  set_action(
      *verb, context, [&context, options]() { return ssh(*options, context); });
}

}  // namespace lockstep::commands
