#include "lockstep/fetch/registry.h"

#include <fmt/format.h>
#include <unistd.h>

#include <csignal>

namespace lockstep::fetch {
namespace {

constexpr auto kLimit = std::chrono::minutes(15);

// The end of a program's output on one line, for an error message.
std::string last_lines(const os::Path& log) {
  auto text = os::real_files().read(log).value_or("");
  constexpr size_t kMost = 400;
  if (text.size() > kMost) {
    text = "..." + text.substr(text.size() - kMost);
  }
  std::string out;
  for (const char c : text) {
    const bool gap = c == '\n' || c == '\r' || c == '\t' || c == ' ';
    if (!gap) {
      out += c;
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  return out.empty() ? "it said nothing" : out;
}

}  // namespace

Result<void> run_tool(
    os::Processes& processes,
    const std::vector<std::string>& argv,
    const os::Path& folder,
    const os::Path& log,
    Duration limit,
    const std::string& fix) {
  LOCKSTEP_TRY(os::real_files().remove(log));
  os::SpawnOptions options;
  options.argv = argv;
  options.environment = os::environment();
  options.directory = folder;
  options.output = log;
  options.die_with_parent = true;
  auto spawned = processes.spawn(options);
  if (!spawned) {
    return spawned.error().code() == ErrorCode::kNotFound
               ? std::move(spawned.error()).with_fix(fix)
               : std::move(spawned.error());
  }
  std::string command;
  for (const auto& word : argv) {
    command += command.empty() ? "" : " ";
    command += word;
  }
  auto status = (*spawned)->wait(os::Deadline::after(limit));
  if (!status) {
    // Whatever it holds, nothing may outlive us.
    (void)(*spawned)->signal(SIGKILL);
    (void)(*spawned)->wait(os::Deadline::after(std::chrono::seconds(5)));
    return std::move(status.error()).with_context(fmt::format("'{}'", command));
  }
  if (!status->ok()) {
    return Error(
        ErrorCode::kUnavailable,
        fmt::format(
            "'{}' ended with {}: {}",
            command,
            status->to_string(),
            last_lines(log)));
  }
  return {};
}

Result<os::Path> npm_pack(
    os::Processes& processes,
    const std::string& package,
    const os::Path& folder) {
  LOCKSTEP_TRY(os::real_files().make_directories(folder));
  LOCKSTEP_TRY(run_tool(
      processes,
      {"npm",
       "pack",
       "--ignore-scripts",
       "--fetch-retries=1",
       "--fetch-timeout=60000",
       package},
      folder,
      folder / "npm.log",
      kLimit,
      "install npm ('apt-get install npm')"));
  LOCKSTEP_ASSIGN(const auto names, os::real_files().list(folder));
  for (const auto& name : names) {
    if (name.ends_with(".tgz")) {
      return folder / name;
    }
  }
  return Error(
      ErrorCode::kNotFound,
      fmt::format(
          "'npm pack {}' left no archive: {}",
          package,
          last_lines(folder / "npm.log")));
}

Result<void> apt_install(
    os::Processes& processes,
    const std::string& package,
    const os::Path& folder) {
  const std::string command =
      fmt::format("apt-get install --no-install-recommends {}", package);
  if (::geteuid() != 0) {
    return Error(
               ErrorCode::kPermission,
               fmt::format("package {} is not installed", package))
        .with_fix(fmt::format("run 'sudo {}'", command));
  }
  LOCKSTEP_TRY(os::real_files().make_directories(folder));
  return run_tool(
      processes,
      {"apt-get", "install", "-y", "-q", "--no-install-recommends", package},
      folder,
      folder / "apt.log",
      kLimit,
      "there is no apt-get here");
}

}  // namespace lockstep::fetch
