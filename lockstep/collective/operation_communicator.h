#pragma once

// The calls of Communicator as two: a backend derives from this and says how
// one Operation runs, and how it is launched. Checks the root of a broadcast.

#include "lockstep/collective/operation.h"

namespace lockstep::collective {

class OperationCommunicator : public Communicator {
 public:
  Timing all_reduce(void* data, size_t count, DataType type, ReduceOp op)
      final {
    return run({Kind::kAllReduce, type, op, 0, count, data});
  }
  Timing reduce_scatter(void* data, size_t count, DataType type, ReduceOp op)
      final {
    return run({Kind::kReduceScatter, type, op, 0, count, data});
  }
  Timing all_gather(void* data, size_t count, DataType type) final {
    return run({Kind::kAllGather, type, ReduceOp::kSum, 0, count, data});
  }
  Timing broadcast(void* data, size_t count, DataType type, int root) final {
    check_root(root, size());
    return run({Kind::kBroadcast, type, ReduceOp::kSum, root, count, data});
  }
  Timing barrier() final { return run({}); }

  Work all_reduce_async(
      void* data,
      size_t count,
      DataType type,
      ReduceOp op,
      void* stream) final {
    return launch({Kind::kAllReduce, type, op, 0, count, data}, stream);
  }
  Work reduce_scatter_async(
      void* data,
      size_t count,
      DataType type,
      ReduceOp op,
      void* stream) final {
    return launch({Kind::kReduceScatter, type, op, 0, count, data}, stream);
  }
  Work all_gather_async(void* data, size_t count, DataType type, void* stream)
      final {
    return launch(
        {Kind::kAllGather, type, ReduceOp::kSum, 0, count, data}, stream);
  }
  Work broadcast_async(
      void* data,
      size_t count,
      DataType type,
      int root,
      void* stream) final {
    check_root(root, size());
    return launch(
        {Kind::kBroadcast, type, ReduceOp::kSum, root, count, data}, stream);
  }

 protected:
  virtual Timing run(const Operation& operation) = 0;
  virtual Work launch(const Operation& operation, void* stream) = 0;
};

}  // namespace lockstep::collective
