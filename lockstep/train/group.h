#pragma once

// The group of ranks a run trains with: finds the others by whatever the
// launcher offers (coordinator, torchrun's store, MPI, or a port that rank 0
// opens) and builds the communicator over it.

#include <c10/core/Device.h>

#include <memory>
#include <string>

#include "lockstep/collective/communicator.h"
#include "lockstep/train/rank_environment.h"
#include "lockstep/wire/rendezvous.h"

namespace lockstep::train {

class Group {
 public:
  // `kind`: auto, host, mpi or nccl; `device`: where the tensors lie. Throws
  // with the address and the missing ranks when the group does not come
  // together within `timeout`.
  Group(
      const RankEnvironment& environment,
      const std::string& kind,
      Duration timeout,
      c10::Device device);
  collective::Communicator& communicator() { return *communicator_; }

 private:
  std::unique_ptr<wire::RendezvousServer> server_;  // rank 0, plain port
  std::unique_ptr<wire::Rendezvous> rendezvous_;
  std::unique_ptr<collective::Communicator> communicator_;
};

// Rank 0's text, on all ranks.
std::string broadcast_text(
    const std::string& text,
    collective::Communicator& group);

}  // namespace lockstep::train
