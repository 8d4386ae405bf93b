#include "lockstep/commands/far_nodes.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/commands/remote.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::hours;
using std::chrono::seconds;

constexpr Duration kAnswer = seconds(30);
constexpr Duration kSetupAnswer = hours(12);

Result<void> joined_errors(const std::vector<Error>& errors) {
  if (errors.empty()) {
    return {};
  }
  std::string text;
  bool input = true;
  bool setup = true;
  for (const Error& error : errors) {
    text += (text.empty() ? "" : "\n") + error.to_string();
    input &= error.code() == ErrorCode::kInvalidInput ||
             error.code() == ErrorCode::kExists;
    setup &= error.code() == ErrorCode::kInternal;
  }
  return Error(
      input   ? ErrorCode::kInvalidInput
      : setup ? ErrorCode::kInternal
              : ErrorCode::kUnavailable,
      text);
}

Error with_host(Error error, const FarNode& node) {
  return error.to_string().find(node.host) == std::string::npos
             ? std::move(error).with_context(node.host)
             : std::move(error);
}

Result<void> ask_facts(FarNode& node) {
  LOCKSTEP_ASSIGN(
      const json facts,
      node.session->call(
          "facts", json::object(), os::Deadline::after(kAnswer)));
  node.cores = facts.value("cores", 1);
  node.gpus = static_cast<int>(facts.value("gpus", json::array()).size());
  node.home = facts.value("lockstep_home", "");
  node.program = facts.value("program", "");
  node.environment = facts.value("environment", launch::Environment());
  for (const char* name :
       {"SSH_CLIENT", "SSH_CONNECTION", "SSH_ORIGINAL_COMMAND", "SSH_TTY"}) {
    node.environment.erase(name);
  }
  return {};
}

void say_sent(const FarNode& node, const char* what, const reach::Sent& sent) {
  if (sent.files + sent.removed > 0) {
    log_debug(
        fmt::format(
            "{}: {}: {} files, {} sent, {} removed",
            node.host,
            what,
            sent.files,
            format_bytes(Bytes{sent.bytes}),
            sent.removed));
  }
}

Result<void> bring(FarNode& node, const Mount& mount) {
  std::error_code ignored;
  reach::Sent sent;
  LOCKSTEP_ASSIGN(
      const os::Path there,
      (fs::is_directory(mount.path, ignored)
           ? reach::sync_folder(*node.session, mount.path, &sent)
           : reach::sync_file(*node.session, mount.path, &sent))
          .with_context("file_mounts." + mount.name));
  say_sent(node, mount.name.c_str(), sent);
  node.mounts.push_back({mount.name, there});
  LOCKSTEP_TRY(node.session->call(
      "mount",
      {{"target", there.string()},
       {"name", mount.name},
       {"workdir", node.workdir.string()}},
      os::Deadline::after(kAnswer)));
  return {};
}

Result<void> set_up(FarNode& node, const std::string& command) {
  auto done = reach::run_setup(
      *node.session,
      node.workdir,
      command,
      node.setup_log,
      os::Deadline::after(kSetupAnswer));
  // The user's own command failed, unless the machine did.
  if (done || done.error().code() == ErrorCode::kUnavailable ||
      done.error().code() == ErrorCode::kTimeout) {
    return done;
  }
  return Error(ErrorCode::kInternal, done.error().to_string());
}

std::string search_path(const FarNode& node, const launch::Job& job) {
  const auto envs = launch::common_envs(job);
  if (const auto wanted = envs.find("PATH"); wanted != envs.end()) {
    return wanted->second;
  }
  const auto inherited = node.environment.find("PATH");
  return inherited == node.environment.end() ? "/usr/local/bin:/usr/bin:/bin"
                                             : inherited->second;
}

Result<void> check_program(FarNode& node, const Preparation& preparation) {
  const auto checked = node.session->call(
      "check",
      {{"program",
        node.trainer.empty() ? preparation.program : node.trainer.string()},
       {"workdir", node.workdir.string()},
       {"path", search_path(node, preparation.job)}},
      os::Deadline::after(kAnswer));
  if (checked) {
    return {};
  }
  // What is to run is the user's to say, wherever it is missing.
  const ErrorCode code = checked.error().code();
  if (code == ErrorCode::kNotFound || code == ErrorCode::kPermission) {
    return Error(ErrorCode::kInvalidInput, checked.error().to_string());
  }
  return Error(checked.error());
}

}  // namespace

Result<std::vector<FarNode>> reach_nodes(
    const std::vector<std::string>& names,
    const std::vector<std::string>& ssh_options) {
  auto sessions = reach::reach_all(names, reach_options(ssh_options));
  std::vector<FarNode> nodes;
  std::vector<Error> errors;
  for (size_t i = 0; i < names.size(); ++i) {
    if (!sessions[i]) {
      // Whatever it was, it was about a machine.
      errors.emplace_back(
          ErrorCode::kUnavailable, sessions[i].error().to_string());
      continue;
    }
    FarNode node;
    node.host = names[i];
    node.session = std::move(*sessions[i]);
    nodes.push_back(std::move(node));
  }
  LOCKSTEP_TRY(joined_errors(errors));
  LOCKSTEP_TRY(on_each(nodes, ask_facts));
  return nodes;
}

Result<void> on_each(
    std::vector<FarNode>& nodes,
    const std::function<Result<void>(FarNode&)>& action) {
  std::vector<Result<void>> results(nodes.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < nodes.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = action(nodes[i]); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<Error> errors;
  for (size_t i = 0; i < results.size(); ++i) {
    if (!results[i]) {
      errors.push_back(with_host(std::move(results[i].error()), nodes[i]));
    }
  }
  return joined_errors(errors);
}

Result<void> prepare_node(FarNode& node, const Preparation& preparation) {
  const launch::Job& job = preparation.job;
  node.trainer = preparation.far_trainer;
  if (preparation.trainer != nullptr) {
    reach::Sent sent;
    LOCKSTEP_ASSIGN(
        node.trainer,
        reach::send_program(*node.session, *preparation.trainer, &sent));
    say_sent(node, "lockstep-train", sent);
  }
  reach::Sent sent;
  LOCKSTEP_ASSIGN(
      node.workdir,
      reach::sync_folder(
          *node.session, job.workdir, &sent, {preparation.runs_folder}));
  say_sent(node, "workdir", sent);
  for (const Mount& mount : preparation.mounts) {
    LOCKSTEP_TRY(bring(node, mount));
  }
  if (!job.setup.empty()) {
    LOCKSTEP_TRY(set_up(node, job.setup));
  }
  if (preparation.job.container.kind() != config::Node::Kind::kNull) {
    return {};  // the program is the image's own
  }
  return check_program(node, preparation);
}

os::Path cache_folder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  return cache != nullptr && *cache != 0
             ? os::Path(cache) / "lockstep"
             : os::Path(home == nullptr ? "/tmp" : home) / ".cache" /
                   "lockstep";
}

}  // namespace lockstep::commands
