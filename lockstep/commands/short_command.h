#pragma once

// A short command of the system, to its end, with its output.

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/process.h"

namespace lockstep::commands {

struct CommandOutput {
  os::ExitStatus status;
  bool timed_out = false;          // it was ended
  std::string output;              // standard output
  std::string complaints;          // standard error
  std::string first_line() const;  // of the complaints, else of the output
  std::string last_line() const;
  std::string last_lines(size_t most) const;  // of both
};

// It dies with the thread that called.
Result<CommandOutput> run_command(
    const std::vector<std::string>& argv,
    std::string_view input = "",
    os::Deadline deadline = os::Deadline::after(std::chrono::minutes(1)));

}  // namespace lockstep::commands
