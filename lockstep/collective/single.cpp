#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "lockstep/collective/factory.h"
#include "lockstep/collective/operation.h"

namespace lockstep::collective {
namespace {

// A group of one has nothing to do.
class SingleCommunicator : public Communicator {
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

  Timing all_reduce(void*, size_t, DataType, ReduceOp) override {
    return check();
  }
  Timing reduce_scatter(void*, size_t, DataType, ReduceOp) override {
    return check();
  }
  Timing all_gather(void*, size_t, DataType) override { return check(); }
  Timing broadcast(void*, size_t, DataType, int root) override {
    check_root(root, 1);
    return check();
  }
  Timing barrier() override { return check(); }
  Work all_reduce_async(void*, size_t, DataType, ReduceOp, void*) override {
    check();
    return {};
  }
  Work reduce_scatter_async(void*, size_t, DataType, ReduceOp, void*) override {
    check();
    return {};
  }
  Work all_gather_async(void*, size_t, DataType, void*) override {
    check();
    return {};
  }
  Work broadcast_async(void*, size_t, DataType, int root, void*) override {
    check_root(root, 1);
    check();
    return {};
  }
  void abort(const std::string& reason) override {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) {
      reason_ = reason.empty() ? "aborted" : reason;
    }
  }

 private:
  Timing check() {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) {
      throw CollectiveError(reason_);
    }
    return {};
  }

  std::mutex mutex_;
  std::string reason_;
};

}  // namespace

std::unique_ptr<Communicator> make_single() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace lockstep::collective
