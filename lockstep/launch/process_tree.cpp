#include "lockstep/launch/process_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <unordered_map>

#include <fmt/format.h>

namespace lockstep::launch {
namespace {

struct Stat {
  char state = 'Z';
  int parent = 0;
  uint64_t start = 0;
};

std::optional<Stat> read_stat(int pid) {
  const int file =
      ::open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return {};
  }
  char text[1024];
  const ssize_t size = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (size <= 0) {
    return {};
  }
  text[size] = 0;
  // The name in parentheses may hold anything, also ')'.
  const char* at = std::strrchr(text, ')');
  if (at == nullptr || at[1] == 0) {
    return {};
  }
  Stat stat;
  stat.state = at[2];
  char* next = nullptr;
  stat.parent = static_cast<int>(std::strtol(at + 3, &next, 10));
  for (int field = 5; field < 22 && next != nullptr; ++field) {
    std::strtol(next, &next, 10);
  }
  stat.start = std::strtoull(next, nullptr, 10);
  return stat;
}

}  // namespace

void become_subreaper() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
}

std::optional<uint64_t> start_ticks(int pid) {
  const auto stat = read_stat(pid);
  if (!stat || stat->state == 'Z' || stat->state == 'X') {
    return {};
  }
  return stat->start;
}

std::vector<int> descendants(int root, const std::set<int>& spared) {
  std::unordered_multimap<int, int> children;
  std::unordered_map<int, char> states;
  DIR* proc = ::opendir("/proc");
  if (proc == nullptr) {
    return {};
  }
  while (const dirent* entry = ::readdir(proc)) {
    int pid = 0;
    const char* name = entry->d_name;
    const char* end = name + std::strlen(name);
    if (const auto got = std::from_chars(name, end, pid);
        got.ec != std::errc() || got.ptr != end) {
      continue;
    }
    if (const auto stat = read_stat(pid)) {
      children.emplace(stat->parent, pid);
      states.emplace(pid, stat->state);
    }
  }
  ::closedir(proc);
  std::vector<int> found;
  std::vector<int> open = {root};
  while (!open.empty()) {
    const int parent = open.back();
    open.pop_back();
    const auto [first, last] = children.equal_range(parent);
    for (auto child = first; child != last; ++child) {
      if (spared.contains(child->second)) {
        continue;
      }
      open.push_back(child->second);
      if (states[child->second] != 'Z') {
        found.push_back(child->second);
      }
    }
  }
  return found;
}

size_t signal_descendants(int root, int number, const std::set<int>& spared) {
  const std::vector<int> pids = descendants(root, spared);
  for (const int pid : pids) {
    ::kill(pid, number);
  }
  return pids.size();
}

bool end_descendants(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  auto pause = std::chrono::milliseconds(1);
  while (true) {
    signal_descendants(::getpid(), SIGKILL);
    int pid = 0;
    while ((pid = ::waitpid(-1, nullptr, WNOHANG)) > 0) {}
    if (pid < 0) {
      return true;
    }
    if (Clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
}

}  // namespace lockstep::launch
