#include "lockstep/collective/mpi.h"

namespace lockstep::collective {
namespace {

[[noreturn]] void refuse() {
  throw CollectiveError(
      "this build has no mpi: install libopenmpi-dev and build again");
}

}  // namespace

bool has_mpi() {
  return false;
}

std::unique_ptr<Communicator> make_mpi_communicator(const GroupOptions&) {
  refuse();
}

std::unique_ptr<wire::Rendezvous> make_mpi_rendezvous() {
  refuse();
}

}  // namespace lockstep::collective
