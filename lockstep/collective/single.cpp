#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "lockstep/collective/factory.h"
#include "lockstep/collective/operation_communicator.h"

namespace lockstep::collective {
namespace {

// A group of one has nothing to do.
class SingleCommunicator : public OperationCommunicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::string name() const override { return "host"; }
  Buffer allocate(size_t bytes) override {
    const size_t rounded = (bytes + 64) / 64 * 64;
    void* data = std::aligned_alloc(64, rounded);
    if (data == nullptr) {
      throw std::bad_alloc();
    }
    std::memset(data, 0, rounded);
    return Buffer(std::shared_ptr<void>(data, std::free), bytes);
  }
  bool takes_pieces() const override { return true; }
  Work gather_pieces_async(
      const void* part,
      void* whole,
      const Pieces& pieces,
      DataType type) override {
    run({});
    for (const auto& piece : pieces.list) {
      copy(whole, piece.at, part, piece.part_at, piece.count, type);
    }
    return {};
  }
  Work scatter_pieces_async(
      const void* whole,
      void* part,
      const Pieces& pieces,
      DataType type,
      ReduceOp) override {
    run({});
    for (const auto& piece : pieces.list) {
      copy(part, piece.part_at, whole, piece.at, piece.count, type);
    }
    return {};
  }
  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) {
      reason_ = reason.empty() ? "aborted" : reason;
    }
  }

 protected:
  Timing run(const Operation&) override {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) {
      throw CollectiveError(reason_);
    }
    return {};
  }
  Work launch(const Operation& operation, void*) override {
    run(operation);
    return {};
  }

 private:
  static void copy(
      void* to,
      size_t to_at,
      const void* from,
      size_t from_at,
      size_t count,
      DataType type) {
    const size_t element = size_of(type);
    std::memcpy(
        static_cast<std::byte*>(to) + to_at * element,
        static_cast<const std::byte*>(from) + from_at * element,
        count * element);
  }

  std::mutex mutex_;
  std::string reason_;
};

}  // namespace

std::unique_ptr<Communicator> make_single() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace lockstep::collective
