#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <filesystem>

#include "lockstep/commands/command.h"
#include "lockstep/commands/node_sessions.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

struct CopyOptions {
  std::string cluster;
  std::string from;
  std::string to;
  std::vector<std::string> nodes;
};

Result<os::ExitStatus> failed_first(
    os::ExitStatus tar,
    Result<os::ExitStatus> ssh) {
  if (ssh && ssh->ok() && !tar.ok()) {
    return tar;
  }
  return ssh;
}

// tar at one end, tar at the other: owners stay behind, times and modes go.
Result<os::ExitStatus> with_tar(
    const OpenCluster& open,
    const fleet::Node& node,
    std::vector<std::string> argv,
    const std::string& far,
    bool is_push) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return os_error("cannot make a pipe", errno);
  }
  os::Descriptor read_end(ends[0]), write_end(ends[1]);
  os::SpawnOptions spawn;
  spawn.argv = std::move(argv);
  spawn.environment = os::environment();
  spawn.new_group = false;
  spawn.die_with_parent = true;
  spawn.standard = is_push ? std::array<int, 3>{-1, write_end.get(), 2}
                           : std::array<int, 3>{read_end.get(), 1, 2};
  LOCKSTEP_ASSIGN(const auto tar, os::real_processes().spawn(spawn));
  const std::array<int, 3> standard =
      is_push ? std::array<int, 3>{read_end.get(), 2, 2}
              : std::array<int, 3>{-1, write_end.get(), 2};
  // Each end is held by those alone who use it, or nobody sees the other's
  // end.
  if (is_push) {
    write_end = os::Descriptor();
  } else {
    read_end = os::Descriptor();
  }
  auto status = ssh_here(open, node, {"-T"}, {far}, standard);
  read_end = os::Descriptor();
  write_end = os::Descriptor();
  LOCKSTEP_ASSIGN(const os::ExitStatus done, tar->wait(os::Deadline::never()));
  return failed_first(done, std::move(status));
}

// The user's ~ is the node's home.
std::string far_path(const std::string& path) {
  if (path == "~") {
    return "\"$HOME\"";
  }
  return path.starts_with("~/") ? "\"$HOME\"/" + shell_word(path.substr(2))
                                : shell_word(path);
}

Result<int>
copy(const CopyOptions& options, const Context& context, bool is_push) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  const os::Path local =
      fs::absolute(is_push ? options.from : options.to).lexically_normal();
  if (is_push && !os::real_files().exists(local)) {
    return Error(
        ErrorCode::kNotFound, fmt::format("{} is not there", local.string()));
  }
  LOCKSTEP_ASSIGN(
      const OpenCluster open,
      open_cluster(options.cluster, "", settings, false));
  LOCKSTEP_ASSIGN(const auto nodes, reachable_nodes(open));
  LOCKSTEP_ASSIGN(const auto chosen, chosen_nodes(nodes, options.nodes));
  const KeepAwake awake(open, nodes);
  if (is_push) {
    const os::Path whole = local.has_filename() ? local : local.parent_path();
    const std::string target = options.to.empty() ? "~" : options.to;
    return on_nodes(chosen, [&](const fleet::Node& node) {
      return with_tar(
          open,
          node,
          {"tar",
           "-C",
           whole.parent_path().string(),
           "-cf",
           "-",
           "--",
           whole.filename().string()},
          fmt::format(
              "mkdir -p -- {0} && tar -C {0} --no-same-owner -xf -",
              far_path(target)),
          true);
    });
  }
  std::string name = options.from;
  while (name.size() > 1 && name.ends_with('/')) {
    name.pop_back();
  }
  const size_t slash = name.rfind('/');
  const std::string parent = slash == std::string::npos ? "~"
                             : slash == 0               ? "/"
                                                        : name.substr(0, slash);
  const std::string base = name == "~" ? "."
                           : slash == std::string::npos
                               ? name
                               : name.substr(slash + 1);
  return on_nodes(
      chosen, [&](const fleet::Node& node) -> Result<os::ExitStatus> {
        // Of several nodes each has a folder of its own.
        const os::Path folder = chosen.size() > 1 ? local / node.name : local;
        LOCKSTEP_TRY(os::real_files().make_directories(folder));
        return with_tar(
            open,
            node,
            {"tar", "-C", folder.string(), "--no-same-owner", "-xf", "-"},
            fmt::format(
                "tar -C {} -cf - -- {}", far_path(parent), shell_word(base)),
            false);
      });
}

void add_copy(
    CLI::App& app,
    Context& context,
    bool is_push,
    const char* name,
    const char* meaning,
    const char* footer) {
  CLI::App* verb = app.add_subcommand(name, meaning);
  verb->footer(footer);
  auto options = std::make_shared<CopyOptions>();
  verb->add_option("cluster", options->cluster, "its name")
      ->required()
      ->type_name("CLUSTER");
  verb->add_option("from", options->from, is_push ? "here" : "on the nodes")
      ->required()
      ->type_name("FROM");
  auto* to = verb->add_option(
      "to",
      options->to,
      is_push ? "folder on the nodes; absent: the home" : "folder here");
  to->type_name("TO");
  if (!is_push) {
    to->required();
  }
  verb->add_option("--node", options->nodes, "these alone; a,b: several")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N");
  set_action(*verb, context, [&context, options, is_push]() {
    return copy(*options, context, is_push);
  });
}

}  // namespace

void add_push(CLI::App& app, Context& context) {
  add_copy(
      app,
      context,
      true,
      "push",
      "a file or folder to the nodes of a cluster",
      "Example: lockstep push blue data ~/work");
}

void add_pull(CLI::App& app, Context& context) {
  add_copy(
      app,
      context,
      false,
      "pull",
      "a file or folder from the nodes of a cluster",
      "Example: lockstep pull blue results . --node blue-0");
}

}  // namespace lockstep::commands
