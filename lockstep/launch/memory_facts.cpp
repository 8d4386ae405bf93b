#include "lockstep/launch/memory_facts.h"

#include <fmt/format.h>
#include <sys/klog.h>
#include <time.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace lockstep::launch {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

int64_t oom_kills() {
  const std::string groups = read_text("/proc/self/cgroup");
  int64_t kills = 0;
  size_t at = 0;
  while (at < groups.size()) {
    const size_t end = std::min(groups.find('\n', at), groups.size());
    const std::string line = groups.substr(at, end - at);
    at = end + 1;
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      kills += parse_oom_kills(
          read_text("/sys/fs/cgroup" + group + "/memory.events"));
    } else if (controllers.find("memory") != std::string::npos) {
      kills += parse_oom_kills(
          read_text("/sys/fs/cgroup/memory" + group + "/memory.oom_control"));
    }
  }
  return kills;
}

double uptime() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) +
         static_cast<double>(now.tv_nsec) * 1e-9;
}

std::string kernel_log() {
  constexpr int kReadAll = 3;  // SYSLOG_ACTION_READ_ALL
  std::string text(1 << 18, '\0');
  const int size =
      ::klogctl(kReadAll, text.data(), static_cast<int>(text.size()));
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

}  // namespace

int64_t parse_oom_kills(std::string_view text) {
  constexpr std::string_view kName = "oom_kill ";
  size_t at = 0;
  while ((at = text.find(kName, at)) != std::string_view::npos) {
    if (at == 0 || text[at - 1] == '\n') {
      int64_t count = 0;
      at += kName.size();
      std::from_chars(text.data() + at, text.data() + text.size(), count);
      return count;
    }
    ++at;
  }
  return 0;
}

bool log_names_victim(std::string_view kernel_log, int pid, double since) {
  // "<3>[ 1234.567890] Memory cgroup out of memory: Killed process 42 (x) ..."
  const std::string wanted = fmt::format("Killed process {} ", pid);
  size_t at = 0;
  while ((at = kernel_log.find(wanted, at)) != std::string_view::npos) {
    const size_t line = kernel_log.rfind('\n', at) + 1;  // npos + 1 is 0
    const size_t stamp = kernel_log.find('[', line);
    if (stamp < at && std::strtod(
                          std::string(kernel_log.substr(stamp + 1, 24)).c_str(),
                          nullptr) >= since) {
      return true;
    }
    at += wanted.size();
  }
  return false;
}

MemoryFacts::MemoryFacts() : kills_(oom_kills()), since_(uptime()) {}

bool MemoryFacts::was_out_of_memory(int pid) {
  const int64_t now = oom_kills();
  const bool grew = now > kills_;
  kills_ = grew ? kills_ + 1 : now;
  return grew || log_names_victim(kernel_log(), pid, since_);
}

}  // namespace lockstep::launch
