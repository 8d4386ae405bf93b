#pragma once

// Tells a process that the kernel ended for lack of memory from one that
// somebody killed: by the counter of its cgroup (v1 and v2) and by the kernel's
// log where we may read it.

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::launch {

class MemoryFacts {
 public:
  MemoryFacts();
  // True when SIGKILL to `pid` came from the kernel's out-of-memory killer.
  // Call once for each process that SIGKILL ended.
  bool was_out_of_memory(int pid);

 private:
  int64_t kills_ = 0;  // of the cgroup, as last seen
  double since_ = 0;
};

// The oom_kill count in the text of memory.events or memory.oom_control.
int64_t parse_oom_kills(std::string_view text);
// True when the kernel's log says that it killed this process, in a line not
// older than `since` (seconds after boot: pids come again).
bool log_names_victim(std::string_view kernel_log, int pid, double since);

}  // namespace lockstep::launch
