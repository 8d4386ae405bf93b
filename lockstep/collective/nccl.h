#pragma once

// The `nccl` backend, chosen by CMake: nccl.cpp in a CUDA build that finds
// nccl.h, else no_nccl.cpp, whose functions throw. Operations run on a stream
// of the group's own, after what the caller's stream holds; data in host memory
// is copied through the GPU, so the small exchanges of a training loop work
// like everywhere else.

#include <memory>
#include <string>

#include "lockstep/collective/factory.h"

namespace lockstep::collective {

bool has_nccl();
// The bus address of a GPU of this process; empty when there is no such GPU,
// and in a build without NCCL.
std::string gpu_address(int device);
std::unique_ptr<Communicator> make_nccl_communicator(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous);

}  // namespace lockstep::collective
