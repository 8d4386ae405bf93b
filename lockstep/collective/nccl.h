#pragma once

// The `nccl` backend, chosen by CMake: nccl.cpp in a CUDA build that finds
// nccl.h, else no_nccl.cpp, whose functions throw.

#include <memory>

#include "lockstep/collective/factory.h"

namespace lockstep::collective {

bool has_nccl();
// GPUs that this process sees; 0 without a driver.
int num_nccl_devices();
std::unique_ptr<Communicator> make_nccl_communicator(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous);

}  // namespace lockstep::collective
