#include "lockstep/launch/run_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/launch/process_tree.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;

os::Path state_path(const record::RunDirectory& run) {
  return run.path() / "state.json";
}

std::string host_name() {
  char name[256] = "localhost";
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

Result<void> write_run_state(
    const record::RunDirectory& run,
    const RunStateFile& state) {
  const json object = {
      {"id", state.id},
      {"name", state.name},
      {"state", state.state},
      {"detail", state.detail},
      {"host", state.host},
      {"pid", state.pid},
      {"pid_start", state.pid_start},
      {"started", state.started},
      {"ended", state.ended},
      {"exit_code", state.exit_code},
      {"world_size", state.world_size},
      {"generation", state.generation},
      {"dollars_per_hour", state.dollars_per_hour},
      {"command", state.command},
      {"program", state.program},
      {"price_source", state.price_source}};
  // Renamed but not synced: after a power cut the run is over anyway, and a
  // sync would be a good part of the time that a launch takes.
  const std::string text =
      object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  const os::Path path = state_path(run);
  const os::Path temporary = path.string() + ".tmp";
  const os::Descriptor file(
      ::open(
          temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file ||
      ::write(file.get(), text.data(), text.size()) !=
          static_cast<ssize_t>(text.size()) ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    return os_error(fmt::format("cannot write {}", path.string()), errno);
  }
  return {};
}

Result<std::optional<RunStateFile>> read_run_state(
    const record::RunDirectory& run) {
  const os::Path path = state_path(run);
  if (!os::real_files().exists(path)) {
    return std::optional<RunStateFile>();
  }
  LOCKSTEP_ASSIGN(const std::string text, os::real_files().read(path));
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) {
    return Error(
        ErrorCode::kCorrupt, fmt::format("{} is not JSON", path.string()));
  }
  RunStateFile state;
  try {
    state.id = object.value("id", "");
    state.name = object.value("name", "");
    state.state = object.value("state", "");
    state.detail = object.value("detail", "");
    state.host = object.value("host", "");
    state.pid = object.value("pid", 0);
    state.pid_start = object.value("pid_start", uint64_t{0});
    state.started = object.value("started", 0.0);
    state.ended = object.value("ended", 0.0);
    state.exit_code = object.value("exit_code", 0);
    state.world_size = object.value("world_size", 0);
    state.generation = object.value("generation", 0);
    state.dollars_per_hour = object.value("dollars_per_hour", 0.0);
    state.command = object.value("command", "");
    state.program = object.value("program", "");
    state.price_source = object.value("price_source", "");
  } catch (const json::exception& error) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("{}: {}", path.string(), error.what()));
  }
  if (state.state == "running" && state.host == host_name() &&
      start_ticks(state.pid) != state.pid_start) {
    state.state = "lost";
    state.detail = "its lockstep process is gone";
  }
  return std::optional(std::move(state));
}

}  // namespace lockstep::launch
