#include "lockstep/collective/nccl.h"

namespace lockstep::collective {

bool has_nccl() {
  return false;
}

int num_nccl_devices() {
  return 0;
}

std::unique_ptr<Communicator> make_nccl_communicator(
    const GroupOptions&,
    wire::Rendezvous&) {
  throw CollectiveError(
      "this build has no nccl: configure with -DLOCKSTEP_CUDA=ON where nccl.h "
      "is installed");
}

}  // namespace lockstep::collective
