#pragma once

// The hosts of a run on their way to take part: reached, asked for their facts,
// given what ranks need. Nothing runs on them yet. Each host has a thread of
// its own while it is worked on.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/job.h"
#include "lockstep/reach/session.h"
#include "lockstep/reach/transfer.h"

namespace lockstep::commands {

// Something of `file_mounts` on a node.
struct PlacedMount {
  std::string name;
  os::Path target;
};

struct FarNode {
  std::string host;  // as the user wrote it
  std::unique_ptr<reach::Session> session;
  int procs = 1;
  int cores = 1;
  int gpus = 0;
  os::Path home;     // of lockstep there
  os::Path program;  // lockstep itself there
  os::Path workdir, trainer;
  launch::Environment environment;
  std::vector<PlacedMount> mounts;  // as they lie there
  std::string setup_log;
};

// All of them, with their facts; the errors of all that cannot be reached.
Result<std::vector<FarNode>> reach_nodes(
    const std::vector<std::string>& names,
    const std::vector<std::string>& ssh_options);

// The action on each node, side by side; the errors of all as one, a line each.
// Its code: what the user must change when all are that, a set-up that failed
// when all are that, else machines that failed.
Result<void> on_each(
    std::vector<FarNode>& nodes,
    const std::function<Result<void>(FarNode&)>& action);

// A source of `file_mounts`, as it lies on this machine.
struct Mount {
  std::string name;  // in the workdir, or absolute
  os::Path path;
};

struct Preparation {
  const launch::Job& job;
  const std::vector<Mount>& mounts;
  const reach::ProgramSet* trainer = nullptr;  // to be sent
  os::Path far_trainer;                        // that is there already
  os::Path runs_folder;                        // never sent
  std::string program;                         // argv[0] of another program
};

// Trainer, workdir, mounts and set-up, and whether the program can be run.
Result<void> prepare_node(FarNode& node, const Preparation& preparation);

// Where this machine keeps hashes of what it sends.
os::Path cache_folder();

}  // namespace lockstep::commands
