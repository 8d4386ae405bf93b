#pragma once

// Child processes behind an interface. A Process is a handle that the parent
// holds; dropping it neither kills nor waits. Output goes straight to files or
// inherited descriptors: nothing is copied through the parent. Safe from any
// thread; one child is waited for by one thread at a time.

#include <array>
#include <csignal>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"

namespace lockstep::os {

struct ExitStatus {
  int code = 0;    // when it exited
  int signal = 0;  // when a signal ended it, else 0
  bool ok() const { return code == 0 && signal == 0; }
  // "exit code 3", "signal 9 (Killed)".
  std::string to_string() const;
};

struct SpawnOptions {
  std::vector<std::string> argv;  // argv[0] is looked up in PATH
  // The whole environment of the child, not additions to ours.
  std::map<std::string, std::string> environment;
  Path directory;              // empty: ours
  std::optional<Path> output;  // stdout and stderr append there; none: ours
  // Own process group, so signals reach its tree. It reads /dev/null: a
  // background group that reads the terminal would be stopped.
  bool new_group = true;
  // SIGKILL when the thread that spawned it ends (not only its process):
  // spawn from a thread that lives as long as the child should.
  bool die_with_parent = false;
  // Descriptors that stay open in the child; all others above 2 are closed.
  std::vector<int> keep;
  // Descriptors of ours that become 0, 1 and 2 of the child; -1: as above.
  std::array<int, 3> standard = {-1, -1, -1};
  // Ctrl-C of a terminal that it shares with us is not for it.
  bool ignore_interrupts = false;
};

class Process {
 public:
  virtual ~Process() = default;
  virtual int pid() const = 0;
  // None while it runs.
  virtual Result<std::optional<ExitStatus>> poll() = 0;
  virtual Result<ExitStatus> wait(Deadline deadline) = 0;
  // To the whole process group when it has one. Fine when all have ended.
  virtual Result<void> signal(int number) = 0;
};

class Processes {
 public:
  virtual ~Processes() = default;
  // Fails with kNotFound or kPermission and the program's name when it cannot
  // be executed: exec's own error comes back, not an exit code.
  virtual Result<std::unique_ptr<Process>> spawn(
      const SpawnOptions& options) = 0;
};

Processes& real_processes();

// Records what was spawned; the test decides how each ends. Not thread-safe.
class FakeProcesses : public Processes {
 public:
  Result<std::unique_ptr<Process>> spawn(const SpawnOptions& options) override;
  std::vector<SpawnOptions> spawned;
  std::vector<std::vector<int>> signals;           // by process
  std::vector<std::optional<ExitStatus>> endings;  // by process
};

// Our own environment.
std::map<std::string, std::string> environment();
std::string home_folder();  // HOME; empty when it is not set

}  // namespace lockstep::os
