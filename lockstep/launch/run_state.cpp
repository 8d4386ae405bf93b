#include "lockstep/launch/run_state.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "lockstep/launch/process_tree.h"
#include "lockstep/launch/tail.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/wire/event.h"

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

std::string to_json(const RunStateFile& state) {
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
      {"cost", state.cost},
      {"cluster", state.cluster},
      {"outputs", state.outputs},
      {"command", state.command},
      {"program", state.program},
      {"price_source", state.price_source},
      {"launcher", state.launcher},
      {"head_host", state.head_host},
      {"head_directory", state.head_directory},
      {"hosts", state.hosts},
      {"ssh_options", state.ssh_options},
      {"job_id", state.job_id},
      {"restarts", state.restarts},
      {"incomplete", state.incomplete},
      {"settled", state.settled}};
  return object.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<RunStateFile> parse_run_state(
    const std::string& text,
    const std::string& source) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) {
    return Error(ErrorCode::kCorrupt, fmt::format("{} is not JSON", source));
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
    state.cost = object.value("cost", 0.0);
    state.cluster = object.value("cluster", "");
    state.outputs = object.value("outputs", "");
    state.command = object.value("command", "");
    state.program = object.value("program", "");
    state.price_source = object.value("price_source", "");
    state.launcher = object.value("launcher", "local");
    state.head_host = object.value("head_host", "");
    state.head_directory = object.value("head_directory", "");
    state.hosts = object.value("hosts", std::vector<std::string>());
    state.ssh_options = object.value("ssh_options", std::vector<std::string>());
    state.job_id = object.value("job_id", "");
    state.restarts = object.value("restarts", -1);
    state.incomplete = object.value("incomplete", false);
    state.settled = object.value("settled", false);
  } catch (const json::exception& error) {
    return Error(
        ErrorCode::kCorrupt, fmt::format("{}: {}", source, error.what()));
  }
  return state;
}

Result<void> write_run_state(
    const record::RunDirectory& run,
    const RunStateFile& state) {
  // Renamed but not synced: after a power cut the run is over anyway, and a
  // sync would be a good part of the time that a launch takes.
  const std::string text = to_json(state);
  const os::Path path = state_path(run);
  const os::Path temporary =
      fmt::format("{}.tmp-{}", path.string(), ::getpid());
  const os::Descriptor file(
      ::open(
          temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!file ||
      ::write(file.get(), text.data(), text.size()) !=
          static_cast<ssize_t>(text.size()) ||
      ::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    return os_error(fmt::format("cannot write {}", path.string()), reason);
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
  LOCKSTEP_ASSIGN(RunStateFile state, parse_run_state(text, path.string()));
  if (state.is_running() && !state.is_remote() && state.launcher != "slurm" &&
      state.host == host_name() && start_ticks(state.pid) != state.pid_start) {
    // It may have ended while we looked: then the file has its last word.
    LOCKSTEP_ASSIGN(const std::string again, os::real_files().read(path));
    LOCKSTEP_ASSIGN(state, parse_run_state(again, path.string()));
    if (state.is_running()) {
      state.state = "lost";
      state.detail = "its lockstep process is gone";
    }
  }
  return std::optional(std::move(state));
}

int64_t last_step(const record::RunDirectory& run) {
  constexpr size_t kLines = 64;
  int64_t step = 0;
  for (const std::string& line : last_lines(run.events(), kLines)) {
    const auto event = wire::parse_event(line);
    if (!event) {
      continue;
    }
    if (const auto* done = std::get_if<wire::Iteration>(&event->body)) {
      step = std::max(step, done->step);
    }
  }
  return step;
}

Result<bool> signal_run(const RunStateFile& state, bool now) {
  // The handle first, then the check: after it the pid cannot change hands.
  const os::Descriptor process(
      static_cast<int>(::syscall(SYS_pidfd_open, state.pid, 0)));
  if (!process || start_ticks(state.pid) != state.pid_start) {
    return false;
  }
  const auto send = [&](int number) {
    return ::syscall(
               SYS_pidfd_send_signal, process.get(), number, nullptr, 0) == 0 ||
           errno == ESRCH;
  };
  if (!send(SIGTERM)) {
    return os_error(fmt::format("cannot signal process {}", state.pid), errno);
  }
  if (now) {
    // One pending signal is one: another kind, and again once the first was
    // taken.
    send(SIGINT);
    pollfd ended{process.get(), POLLIN, 0};
    ::poll(&ended, 1, 200);
    send(SIGTERM);
  }
  return true;
}

bool wait_until_ended(const RunStateFile& state, os::Deadline deadline) {
  const os::Descriptor process(
      static_cast<int>(::syscall(SYS_pidfd_open, state.pid, 0)));
  while (process && start_ticks(state.pid) == state.pid_start) {
    if (deadline.passed()) {
      return false;
    }
    pollfd ended{process.get(), POLLIN, 0};
    ::poll(
        &ended,
        1,
        static_cast<int>(
            std::chrono::ceil<std::chrono::milliseconds>(deadline.left())
                .count()));
  }
  return true;
}

}  // namespace lockstep::launch
