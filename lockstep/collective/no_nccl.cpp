#include "lockstep/collective/nccl.h"

namespace lockstep::collective {

bool has_nccl() {
  return false;
}

std::string gpu_address(int) {
  return "";
}

std::unique_ptr<Communicator> make_nccl_communicator(
    const GroupOptions&,
    wire::Rendezvous&) {
  throw CollectiveError(
      "this build has no nccl: configure with -DLOCKSTEP_CUDA=ON where nccl.h "
      "is installed");
}

}  // namespace lockstep::collective
