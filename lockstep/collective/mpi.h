#pragma once

// The `mpi` backend, chosen by CMake: mpi.cpp where Open MPI is installed, else
// no_mpi.cpp, whose functions throw.

#include <memory>

#include "lockstep/collective/factory.h"

namespace lockstep::collective {

bool has_mpi();
std::unique_ptr<Communicator> make_mpi_communicator(
    const GroupOptions& options);

}  // namespace lockstep::collective
