#pragma once

// The kinds of `lockstep run`, one function each.

#include <string>
#include <vector>

#include "lockstep/commands/run_options.h"

namespace lockstep::commands {

struct RunOrder {
  const RunOptions& options;
  const Context& context;
  Settings settings;
  ResolvedJob priced;
};

Result<int> run_local(const RunOrder& order);

// lockstep-train when the job has a `train` section, else empty.
Result<os::Path> find_trainer(const launch::Job& job);
}  // namespace lockstep::commands
