#pragma once

// MPI itself, for the files of the `mpi` backend: started once, errors as
// CollectiveError, and our types and operations in its words. Started for any
// thread where MPI allows it; type_of() and op_of() after initialise().

#include <mpi.h>

#include "lockstep/collective/communicator.h"

namespace lockstep::collective {

// Throws unless `code` is MPI_SUCCESS.
void must(int code, const char* what);

// Finalised at exit by whoever initialised.
void initialise_mpi();

bool may_call_mpi_from_any_thread();

MPI_Datatype mpi_type(DataType type);
MPI_Op mpi_op(DataType type, ReduceOp op);

}  // namespace lockstep::collective
