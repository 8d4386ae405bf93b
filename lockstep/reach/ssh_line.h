#pragma once

// ssh as a child: its standard streams are ours, its complaints are kept.
// Internal to reach.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/process.h"
#include "lockstep/os/socket.h"

namespace lockstep::reach {

struct SshLine {
  std::unique_ptr<os::Process> process;
  std::unique_ptr<os::Connection> stream;
  os::Descriptor complaints;

  // What ssh and the far side complained of so far.
  std::string words() const;
  // Leaves no ssh behind: it ends when its input does, or is ended.
  void end(Duration patience);
};

// `batch`: nobody is asked anything.
Result<SshLine> start_ssh(
    const std::string& host,
    const std::vector<std::string>& command,
    bool batch);

// The next line that begins with the mark, without it. What a login script
// prints before is passed over.
Result<std::string>
read_marked(SshLine& line, const std::string& mark, os::Deadline deadline);

}  // namespace lockstep::reach
