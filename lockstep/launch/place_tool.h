#pragma once

// A debugger or profiler that looks at a rank: a child with a deadline whose
// output goes to memory. Nothing here waits for it. One thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/process.h"

namespace lockstep::launch {

// In our PATH, in the PATH of process `pid`, or beside its interpreter (a
// venv). An empty name is never found; one with a slash is a path.
std::optional<std::string> find_tool(const std::string& name, int pid);

class PlaceTool {
 public:
  PlaceTool(std::vector<std::string> argv, Duration patience);
  ~PlaceTool();  // kills it

  // It ended, could not be started, or was killed because its time is over.
  bool done();
  bool late() const { return late_; }
  std::string output() const;

 private:
  void kill();

  os::Descriptor output_;
  os::Deadline deadline_;
  std::unique_ptr<os::Process> process_;
  bool late_ = false;
};

// Why a tool gave no stack, and what lets it attach.
std::string ptrace_hint();

}  // namespace lockstep::launch
