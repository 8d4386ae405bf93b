#pragma once

// A group of ranks that reduce and exchange memory together. All ranks call
// the same operations in the same order; a communicator never changes its
// members (a new generation makes a new one). Calls come from one thread at a
// time; abort() from any. Failures throw CollectiveError: a deadline that
// passed names the ranks that did not arrive, a lost peer is named, an abort
// says why. After a failure the communicator is dead and every wait on every
// rank ends within 100 ms; memory stays valid.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/units.h"

namespace lockstep::collective {

enum class DataType { kFloat32, kBFloat16, kFloat64, kInt32, kInt64, kUint8 };
size_t size_of(DataType type);

enum class ReduceOp { kSum, kMin, kMax };

class CollectiveError : public std::runtime_error {
 public:
  CollectiveError(const std::string& what, std::vector<int> ranks = {})
      : std::runtime_error(what), ranks_(std::move(ranks)) {}
  // The ranks that are missing or lost, when known.
  const std::vector<int>& ranks() const { return ranks_; }

 private:
  std::vector<int> ranks_;
};

// Where the time of an operation went, in seconds, on this rank: `wait` is the
// last arrival minus our own (0 when we were last), `busy` the rest that the
// caller was blocked for.
struct Timing {
  double wait = 0;
  double busy = 0;
};

// An operation under way. wait() returns once the result is in place; its
// destructor waits too. Progress is made inside wait(), inside later calls on
// the communicator, or by a thread of its own (TCP), as the backend does best.
class Work {
 public:
  class State {
   public:
    virtual ~State() = default;
    virtual Timing wait() = 0;
    virtual bool done() = 0;
  };
  Work() = default;  // done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Timing wait() { return state_ ? state_->wait() : Timing{}; }
  bool done() { return !state_ || state_->done(); }

 private:
  std::shared_ptr<State> state_;
};

// Memory that the backend reduces without a copy (shared between the ranks of
// a host; plain or pinned memory elsewhere). 64-byte aligned, zeroed. Lives as
// long as the Buffer, also after an abort.
class Buffer {
 public:
  Buffer() = default;
  Buffer(std::shared_ptr<void> owner, size_t bytes)
      : owner_(std::move(owner)), bytes_(bytes) {}
  void* data() const { return owner_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> owner_;
  size_t bytes_ = 0;
};

class Memory;

// Tensors that travel as one: each lies in a whole, and one block of each in a
// part, so that what is used as it lies is also sent as it lies. All counts and
// places are in elements.
struct Pieces {
  struct Piece {
    size_t at = 0;       // in the whole: size() blocks of `count`
    size_t count = 0;    // of a block
    size_t part_at = 0;  // in the part: one block
  };
  std::vector<Piece> list;
  size_t whole = 0;  // length of the whole and of a part
  size_t part = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;  // "host", "mpi", "nccl"

  virtual Buffer allocate(size_t bytes) = 0;
  // Whether `data` may lie on a GPU; host memory is always taken.
  virtual bool takes_device_memory() const { return false; }
  // What Buffers come from, for GroupOptions of the next generation; null
  // where the backend has none.
  virtual std::shared_ptr<Memory> memory() const { return nullptr; }

  // Blocking forms: one call, no allocation on the fast path. `data` may lie
  // anywhere; inside a Buffer of this communicator it is reduced in place.
  // Results are equal on all ranks bit for bit.
  virtual Timing
  all_reduce(void* data, size_t count, DataType type, ReduceOp op) = 0;
  // data holds size() blocks of `count`; block rank() becomes the reduction,
  // the others are undefined afterwards.
  virtual Timing
  reduce_scatter(void* data, size_t count, DataType type, ReduceOp op) = 0;
  // data holds size() blocks of `count`; ours is block rank().
  virtual Timing all_gather(void* data, size_t count, DataType type) = 0;
  virtual Timing
  broadcast(void* data, size_t count, DataType type, int root) = 0;
  virtual Timing barrier() = 0;

  // Asynchronous forms. `stream` is an opaque device stream whose work so far
  // comes first (NCCL; null: the default stream).
  virtual Work all_reduce_async(
      void* data,
      size_t count,
      DataType type,
      ReduceOp op,
      void* stream = nullptr) = 0;
  virtual Work reduce_scatter_async(
      void* data,
      size_t count,
      DataType type,
      ReduceOp op,
      void* stream = nullptr) = 0;
  virtual Work all_gather_async(
      void* data,
      size_t count,
      DataType type,
      void* stream = nullptr) = 0;
  virtual Work broadcast_async(
      void* data,
      size_t count,
      DataType type,
      int root,
      void* stream = nullptr) = 0;

  // Whether the next two work here; elsewhere pack the pieces and use
  // all_gather and reduce_scatter. Both ends lie in Buffers of this
  // communicator, `pieces` are equal on all ranks and outlive the Work.
  virtual bool takes_pieces() const { return false; }
  // Block rank() of each piece of `whole` becomes the `part` of that rank.
  virtual Work gather_pieces_async(
      const void* part,
      void* whole,
      const Pieces& pieces,
      DataType type);
  // `part` becomes the reduction of our block of each piece; `whole` stays.
  virtual Work scatter_pieces_async(
      const void* whole,
      void* part,
      const Pieces& pieces,
      DataType type,
      ReduceOp op);

  // Lets operations under way advance without blocking.
  virtual void progress() {}
  virtual void abort(const std::string& reason) = 0;
  // Whether the group is dead, here or elsewhere. From any thread.
  virtual bool failed() const { return false; }
};

}  // namespace lockstep::collective
