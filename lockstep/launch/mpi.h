#pragma once

// `--launcher mpi`: Open MPI's mpirun starts a shim for each rank, from the
// machine where `lockstep run` stands, through the same ssh as lockstep itself
// or, without hosts, on this machine. The hostfile stands in the run directory
// under mpi/.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/shims.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

struct MpiOptions {
  os::Path folder;                // mpi/ of the run directory
  os::Path program;               // lockstep, as the nodes have it
  bool is_local = false;          // this machine, without hosts
  std::vector<std::string> more;  // the job's mpi.options
  bool is_root = false;
  std::string agent;  // see rsh_agent
};

// A line a host, in the order of the plan: "n1 slots=2". `ranks` of the plan
// take part. Pure.
std::string mpi_hostfile(
    const RankPlan& plan,
    const std::vector<size_t>& ranks);

// The words of mpirun before the program. Pure.
std::vector<std::string> mpirun_arguments(
    const MpiOptions& options,
    size_t ranks);

// The ssh that mpirun uses, as one text of words: as reach does (LOCKSTEP_SSH,
// LOCKSTEP_SSH_OPTIONS, then the job's `more`), and it notices a cut host by
// itself. Not a script of ours: Open MPI's daemons look for its first word on
// every host. Pure.
std::string rsh_agent(
    const Environment& environment,
    const std::vector<std::string>& more);

// kNotFound with what to install when there is no mpirun here.
Result<std::unique_ptr<ShimStarter>> make_mpi_starter(MpiOptions options);

}  // namespace lockstep::launch
