#pragma once

// What /proc tells of a process: the files themselves, how busy a tree of
// processes is, what one waits for. What cannot be read is empty or 0; nothing
// here fails. Any thread.

#include <cstddef>
#include <string>
#include <vector>

namespace lockstep::launch {

// The content of a file of /proc, at most about `most` bytes of it.
std::string read_proc(const std::string& path, size_t most = 1 << 16);
std::string read_proc(int pid, const char* name, size_t most = 1 << 16);

// A list of texts that each end with a zero, as cmdline and environ are.
std::vector<std::string> split_zeros(const std::string& text);

// Used so far by a process and everything below it.
struct ProcessUse {
  double cpu_seconds = 0;
  double bytes = 0;  // read and written
};
ProcessUse use_of(int root);

// "sleeping in futex_wait_queue", "stopped (...)", "gone": see describe_state.
std::string state_of(int pid);

// A shell, or a small program that starts the real one, only waits for it:
// the busiest process below it, else the process itself.
int program_below(int pid);

bool is_python(int pid);

}  // namespace lockstep::launch
