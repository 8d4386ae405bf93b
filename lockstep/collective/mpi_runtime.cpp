#include "lockstep/collective/mpi_runtime.h"

#include <fmt/format.h>

#include <cstdlib>

#include "lockstep/collective/kernels.h"

namespace lockstep::collective {
namespace {

template <ReduceOp op>
void reduce_halves(void* in, void* out, int* count, MPI_Datatype*) {
  const void* inputs[] = {in, out};
  reduce(
      inputs, 2, &out, 1, static_cast<size_t>(*count), DataType::kBFloat16, op);
}

// MPI has no bf16: a type of two bytes with operations of our own.
struct Halves {
  Halves() {
    must(MPI_Type_contiguous(2, MPI_BYTE, &type), "MPI_Type_contiguous");
    must(MPI_Type_commit(&type), "MPI_Type_commit");
    must(MPI_Op_create(reduce_halves<ReduceOp::kSum>, 1, &ops[0]), "sum");
    must(MPI_Op_create(reduce_halves<ReduceOp::kMin>, 1, &ops[1]), "min");
    must(MPI_Op_create(reduce_halves<ReduceOp::kMax>, 1, &ops[2]), "max");
  }
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Op ops[3] = {};
};

Halves& halves() {
  static Halves all;  // freed with MPI itself
  return all;
}

}  // namespace

void must(int code, const char* what) {
  if (code == MPI_SUCCESS) {
    return;
  }
  char text[MPI_MAX_ERROR_STRING] = {};
  int size = 0;
  MPI_Error_string(code, text, &size);
  throw CollectiveError(fmt::format("mpi: {}: {}", what, text));
}

void initialise_mpi() {
  int done = 0;
  MPI_Initialized(&done);
  if (done != 0) {
    return;
  }
  int provided = 0;
  must(
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided),
      "MPI_Init_thread");
  std::atexit([] {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized == 0) {
      MPI_Finalize();
    }
  });
}

bool may_call_mpi_from_any_thread() {
  int level = 0;
  MPI_Query_thread(&level);
  return level == MPI_THREAD_MULTIPLE;
}

MPI_Datatype mpi_type(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return MPI_FLOAT;
    case DataType::kBFloat16:
      return halves().type;
    case DataType::kFloat64:
      return MPI_DOUBLE;
    case DataType::kInt32:
      return MPI_INT32_T;
    case DataType::kInt64:
      return MPI_INT64_T;
    case DataType::kUint8:
      return MPI_UINT8_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op mpi_op(DataType type, ReduceOp op) {
  if (type == DataType::kBFloat16) {
    return halves().ops[static_cast<int>(op)];
  }
  return op == ReduceOp::kSum   ? MPI_SUM
         : op == ReduceOp::kMin ? MPI_MIN
                                : MPI_MAX;
}

}  // namespace lockstep::collective
