#pragma once

// Chooses and builds a communicator from the rank's environment.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/collective/communicator.h"
#include "lockstep/wire/rendezvous.h"

namespace lockstep::collective {

class Memory;  // shared_memory.h

struct GroupOptions {
  int rank = 0;
  int world_size = 1;
  std::string kind = "auto";  // auto, host, mpi, nccl
  int device = -1;  // the GPU on which this rank's data lies; -1: none
  // Separates groups that share a rendezvous: run id and generation.
  std::string group = "0";
  Duration timeout = std::chrono::minutes(5);  // of every wait
  Key key{};                                   // of the run
  // Which ranks share a host: equal strings do. Empty: hostname, boot id and
  // network namespace of this process.
  std::string host_identity;
  // Address on which this rank is reached by other hosts. Empty: the one of
  // the interface that reaches the rendezvous.
  std::string advertise_host;
  // The memory() of an earlier communicator of this rank, whose Buffers then
  // stay in place and are shared with the new group too. Absent: a new one.
  std::shared_ptr<Memory> memory;
};

// Builds the group; blocks until all ranks are there or the timeout names
// those that are not. auto: see docs/collectives.md. Throws CollectiveError
// with the accepted values for an unknown or uncompiled kind.
std::unique_ptr<Communicator> make_communicator(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous);

// A group of one: every operation is a no-op.
std::unique_ptr<Communicator> make_single();

// Kinds this build has: "host", and "mpi", "nccl" where compiled.
std::vector<std::string> available_kinds();

// A rendezvous over MPI (initialises MPI when needed); throws without MPI.
std::unique_ptr<wire::Rendezvous> make_mpi_rendezvous();

}  // namespace lockstep::collective
