#include "lockstep/launch/place_tool.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/launch/process_look.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {
namespace {

constexpr size_t kMostOutput = 1 << 20;

}  // namespace

std::optional<std::string> find_tool(const std::string& name, int pid) {
  if (name.empty()) {
    return {};
  }
  if (name.find('/') != std::string::npos) {
    return ::access(name.c_str(), X_OK) == 0 ? std::optional(name)
                                             : std::nullopt;
  }
  std::string folders;
  if (const char* path = std::getenv("PATH")) {
    folders = path;
  }
  for (const std::string& entry : split_zeros(read_proc(pid, "environ"))) {
    if (entry.starts_with("PATH=")) {
      folders += ":" + entry.substr(5);
    }
  }
  const auto argv = split_zeros(read_proc(pid, "cmdline"));
  if (!argv.empty() && argv[0].find('/') != std::string::npos) {
    folders += ":" + os::Path(argv[0]).parent_path().string();
  }
  std::istringstream stream(folders);
  for (std::string folder; std::getline(stream, folder, ':');) {
    const std::string program = folder + "/" + name;
    if (!folder.empty() && ::access(program.c_str(), X_OK) == 0) {
      return program;
    }
  }
  return {};
}

PlaceTool::PlaceTool(std::vector<std::string> argv, Duration patience)
    : output_(::memfd_create("lockstep-place", MFD_CLOEXEC)),
      deadline_(os::Deadline::after(patience)) {
  os::SpawnOptions options;
  options.argv = std::move(argv);
  options.environment = os::environment();
  options.environment["LC_ALL"] = "C";
  options.output = fmt::format("/proc/self/fd/{}", output_.get());
  auto process = os::real_processes().spawn(options);
  if (process) {
    process_ = std::move(*process);
  }
}

PlaceTool::~PlaceTool() {
  kill();
}

bool PlaceTool::done() {
  if (process_ == nullptr) {
    return true;
  }
  const auto status = process_->poll();
  if (!status || *status) {
    process_.reset();
    return true;
  }
  if (deadline_.passed()) {
    kill();
    late_ = true;
  }
  return process_ == nullptr;
}

std::string PlaceTool::output() const {
  return read_proc(fmt::format("/proc/self/fd/{}", output_.get()), kMostOutput);
}

void PlaceTool::kill() {
  if (process_ != nullptr) {
    (void)process_->signal(SIGKILL).has_value();
    constexpr auto kReap = std::chrono::milliseconds(200);
    (void)process_->wait(os::Deadline::after(kReap)).has_value();
    process_.reset();
  }
}

std::string ptrace_hint() {
  const std::string scope =
      std::string(trim(read_proc("/proc/sys/kernel/yama/ptrace_scope")));
  return scope.empty() || scope == "0"
             ? "it may not attach to this process"
             : fmt::format(
                   "kernel.yama.ptrace_scope is {}: 'sysctl "
                   "kernel.yama.ptrace_scope=0' lets it attach",
                   scope);
}

}  // namespace lockstep::launch
