#include "lockstep/commands/command.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/nearest.h"
#include "lockstep/config/binder.h"
#include "lockstep/launch/program.h"
#include "lockstep/launch/run_state.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

struct SettingsFile {
  Settings settings;
  void bind(config::Binder& binder) {
    binder.field("runs_dir", settings.runs_dir, "where runs are kept");
    binder.field(
        "price",
        settings.price,
        "dollars an hour of this machine",
        config::at_least(0));
    binder.field("region", settings.region, "of the cloud");
    binder.field("regions", settings.regions, "that audits look at");
    binder.field("prices", settings.prices, "dollars an hour, by type or host");
    binder.field("key", settings.key, "of the cloud");
    binder.field(
        "cap", settings.cap, "most dollars over all runs", config::above(0));
    binder.field(
        "cap_period",
        settings.cap_period,
        "the runs of so long count against the cap",
        config::above(0));
  }
};

std::string home() {
  const char* value = std::getenv("HOME");
  return value == nullptr ? "" : value;
}

// "<name>-<date>-<time>-<random>" without the last three.
std::string run_name(const std::string& id) {
  size_t end = id.size();
  for (int part = 0; part < 3 && end != std::string::npos && end > 0; ++part) {
    end = id.rfind('-', end - 1);
  }
  return end == std::string::npos ? id : id.substr(0, end);
}

}  // namespace

os::Path settings_file() {
  if (const char* folder = std::getenv("XDG_CONFIG_HOME");
      folder != nullptr && *folder != 0) {
    return os::Path(folder) / "lockstep" / "config.yaml";
  }
  return os::Path(home()) / ".config" / "lockstep" / "config.yaml";
}

Result<Settings> load_settings(const os::Path& file) {
  std::error_code ignored;
  if (!fs::exists(file, ignored)) {
    return Settings{};
  }
  LOCKSTEP_ASSIGN(const config::Node node, config::load_yaml(file.string()));
  LOCKSTEP_ASSIGN(SettingsFile read, config::read<SettingsFile>(node));
  struct stat facts = {};
  if (stat(file.c_str(), &facts) == 0) {
    read.settings.written = static_cast<double>(facts.st_mtime);
  }
  if (read.settings.runs_dir.starts_with("~/")) {
    read.settings.runs_dir = home() + read.settings.runs_dir.substr(1);
  }
  return read.settings;
}

OutputFormat Context::format() const {
  if (output == "json") {
    return OutputFormat::kJson;
  }
  return output == "quiet" ? OutputFormat::kQuiet : OutputFormat::kTable;
}

Result<Settings> Context::settings() const {
  LOCKSTEP_ASSIGN(Settings settings, load_settings(settings_file()));
  if (!runs_dir.empty()) {
    settings.runs_dir = runs_dir;
  }
  return settings;
}

int fail(const Error& error) {
  std::fputs(fmt::format("lockstep: {}\n", error.to_string()).c_str(), stderr);
  switch (error.code()) {
    case ErrorCode::kUnavailable:
    case ErrorCode::kAborted:
      return 3;
    case ErrorCode::kTimeout:
      return 124;
    case ErrorCode::kInterrupted:
      return 130;
    case ErrorCode::kInternal:
      return 1;
    // What was given cannot be used; a job that began has a code of its own.
    case ErrorCode::kIo:
    case ErrorCode::kNoSpace:
    case ErrorCode::kCorrupt:
    case ErrorCode::kInvalidInput:
    case ErrorCode::kNotFound:
    case ErrorCode::kExists:
    case ErrorCode::kPermission:
      return 2;
  }
  return 1;
}

void set_action(
    CLI::App& verb,
    Context& context,
    std::function<Result<int>()> action) {
  verb.callback([&context, action = std::move(action)] {
    const Result<int> code = action();
    context.exit_code = code ? *code : fail(code.error());
  });
}

Result<record::RunDirectory> find_run(
    const Settings& settings,
    const std::string& name) {
  const os::Path direct = os::Path(settings.runs_dir) / name;
  if (auto run = record::RunDirectory::existing(direct)) {
    return run;
  }
  const bool is_path = name.find('/') != std::string::npos;
  auto there = record::RunDirectory::existing(name);
  if (is_path && there) {
    return there;
  }
  LOCKSTEP_ASSIGN(
      std::vector<record::RunDirectory> runs,
      record::list_runs(settings.runs_dir));
  if (name == "last" && !runs.empty()) {
    return runs.front();
  }
  for (const record::RunDirectory& run : runs) {
    if (run_name(run.id()) == name) {
      return run;  // the newest comes first
    }
  }
  // An id holds a name with spaces or letters of other kinds only in part.
  for (const record::RunDirectory& run : runs) {
    const auto state = launch::read_run_state(run);
    if (state && *state && (*state)->name == name) {
      return run;
    }
  }
  if (is_path) {
    return there;  // tells what is wrong with that folder
  }
  std::vector<std::string> ids;
  std::vector<size_t> matches;
  for (size_t i = 0; i < runs.size(); ++i) {
    ids.push_back(runs[i].id());
    if (ids.back().starts_with(name)) {
      matches.push_back(i);
    }
  }
  if (matches.size() == 1) {
    return runs[matches[0]];
  }
  if (matches.size() > 1) {
    std::string named;
    for (const size_t i : matches) {
      named += (named.empty() ? "" : ", ") + ids[i];
    }
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("'{}' names {} runs: {}", name, matches.size(), named));
  }
  std::string near;
  for (const std::string& id : nearest_names(name, ids)) {
    near += fmt::format("{}{}", near.empty() ? "; near: " : ", ", id);
  }
  return Error(
             ErrorCode::kNotFound,
             fmt::format(
                 "no run '{}' under {}{}", name, settings.runs_dir, near))
      .with_fix("'lockstep ps' lists the runs");
}

void add_runs_dir(CLI::App& verb, Context& context) {
  verb.add_option("--runs-dir", context.runs_dir, "where runs are kept")
      ->type_name("DIR");
}

os::Path own_program() {
  std::error_code error;
  os::Path path = fs::read_symlink("/proc/self/exe", error);
  // A binary that was replaced while it runs is still there under this name.
  return error || !fs::exists(path, error) ? os::Path("/proc/self/exe") : path;
}

os::Path trainer_program() {
  if (const char* named = std::getenv("LOCKSTEP_TRAINER_BIN");
      named != nullptr && *named != 0) {
    return launch::find_program(named, "");
  }
  const os::Path beside = own_program().parent_path() / "lockstep-train";
  if (os::Path found = launch::find_program(beside.string(), "");
      !found.empty()) {
    return found;
  }
  const char* path = std::getenv("PATH");
  return launch::find_program("lockstep-train", path == nullptr ? "" : path);
}

}  // namespace lockstep::commands
