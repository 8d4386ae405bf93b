#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "lockstep/commands/command.h"
#include "lockstep/commands/node_sessions.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::commands {
namespace {

struct ExecOptions {
  std::string cluster;
  std::vector<std::string> nodes;
};

// Whole lines of one node, with its name before each.
void pass_lines(int source, FILE* target, const std::string& prefix) {
  std::string line;
  char buffer[8192];
  const auto put = [&] {
    // A line may hold any byte.
    const std::string whole = prefix + line + "\n";
    std::fwrite(whole.data(), 1, whole.size(), target);
    line.clear();
  };
  for (ssize_t count = 0;
       (count = ::read(source, buffer, sizeof buffer)) > 0;) {
    for (ssize_t i = 0; i < count; ++i) {
      if (buffer[i] == '\n') {
        put();
      } else {
        line += buffer[i];
      }
    }
    std::fflush(target);
  }
  if (!line.empty()) {
    put();
    std::fflush(target);
  }
}

Result<os::ExitStatus> exec_on(
    const OpenCluster& open,
    const fleet::Node& node,
    const std::vector<std::string>& words,
    bool is_named) {
  if (!is_named) {
    return ssh_here(open, node, {"-T"}, words, {-1, 1, 2});
  }
  int out[2], err[2];
  if (::pipe2(out, O_CLOEXEC) != 0) {
    return os_error("cannot make a pipe", errno);
  }
  os::Descriptor out_read(out[0]), out_write(out[1]);
  if (::pipe2(err, O_CLOEXEC) != 0) {
    return os_error("cannot make a pipe", errno);
  }
  os::Descriptor err_read(err[0]), err_write(err[1]);
  const std::string prefix = fmt::format("[{}] ", node.name);
  std::thread first([&] { pass_lines(out_read.get(), stdout, prefix); });
  std::thread second([&] { pass_lines(err_read.get(), stderr, prefix); });
  auto status = ssh_here(
      open, node, {"-T"}, words, {-1, out_write.get(), err_write.get()});
  out_write = os::Descriptor();
  err_write = os::Descriptor();
  first.join();
  second.join();
  return status;
}

Result<int> exec(const ExecOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  if (context.program.empty()) {
    return Error(ErrorCode::kInvalidInput, "no command is named")
        .with_fix("lockstep exec CLUSTER -- CMD");
  }
  LOCKSTEP_ASSIGN(
      const OpenCluster open,
      open_cluster(options.cluster, "", settings, false));
  LOCKSTEP_ASSIGN(const auto nodes, reachable_nodes(open));
  LOCKSTEP_ASSIGN(const auto chosen, chosen_nodes(nodes, options.nodes));
  const KeepAwake awake(open, nodes);
  // One word is a text for the shell, several are a program with arguments.
  std::vector<std::string> words = context.program;
  if (words.size() > 1) {
    std::ranges::transform(words, words.begin(), shell_word);
  }
  return on_nodes(chosen, [&](const fleet::Node& node) {
    return exec_on(open, node, words, chosen.size() > 1);
  });
}

}  // namespace

void add_exec(CLI::App& app, Context& context) {
  CLI::App* verb =
      app.add_subcommand("exec", "a command on all nodes of a cluster");
  verb->footer("Example: lockstep exec blue -- uptime");
  auto options = std::make_shared<ExecOptions>();
  verb->add_option("cluster", options->cluster, "its name")
      ->required()
      ->type_name("CLUSTER");
  verb->add_option("--node", options->nodes, "these alone; a,b: several")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N");
  set_action(*verb, context, [&context, options]() {
    return exec(*options, context);
  });
}

}  // namespace lockstep::commands
