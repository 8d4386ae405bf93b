#include "lockstep/launch/process_look.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "lockstep/base/text.h"
#include "lockstep/launch/place.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::launch {
namespace {

double cpu_seconds(int pid) {
  const std::string stat = read_proc(pid, "stat");
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) {
    return 0;
  }
  std::istringstream fields(stat.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) {
    fields >> skipped;
  }
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

}  // namespace

std::string read_proc(const std::string& path, size_t most) {
  std::string text;
  const os::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char block[4096];
  ssize_t size = 0;
  while (file && text.size() < most &&
         (size = ::read(file.get(), block, sizeof block)) > 0) {
    text.append(block, static_cast<size_t>(size));
  }
  return text;
}

std::string read_proc(int pid, const char* name, size_t most) {
  return read_proc(fmt::format("/proc/{}/{}", pid, name), most);
}

std::vector<std::string> split_zeros(const std::string& text) {
  std::vector<std::string> parts;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\0', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

ProcessUse use_of(int root) {
  ProcessUse use;
  std::vector<int> pids = descendants(root);
  pids.push_back(root);
  for (const int pid : pids) {
    use.cpu_seconds += cpu_seconds(pid);
    for (const std::string& line : lines_of(read_proc(pid, "io"))) {
      if (line.starts_with("rchar:") || line.starts_with("wchar:")) {
        use.bytes += std::strtod(line.c_str() + 6, nullptr);
      }
    }
  }
  return use;
}

std::string state_of(int pid) {
  return describe_state(
      read_proc(pid, "status"),
      read_proc(pid, "wchan"),
      read_proc(pid, "stack"),
      read_proc(pid, "syscall"));
}

int program_below(int pid) {
  const long call = std::strtol(read_proc(pid, "syscall").c_str(), nullptr, 10);
  if (call != SYS_wait4 && call != SYS_waitid && call != SYS_rt_sigsuspend) {
    return pid;
  }
  int best = pid;
  double most = -1;
  for (const int child : descendants(pid)) {
    if (const double used = cpu_seconds(child); used > most) {
      most = used;
      best = child;
    }
  }
  return best;
}

bool is_python(int pid) {
  std::error_code failed;
  const std::string program =
      std::filesystem::read_symlink(fmt::format("/proc/{}/exe", pid), failed)
          .filename()
          .string();
  return program.find("python") != std::string::npos ||
         read_proc(pid, "maps", 1 << 20).find("libpython") != std::string::npos;
}

}  // namespace lockstep::launch
