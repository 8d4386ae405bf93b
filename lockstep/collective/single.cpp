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
  std::mutex mutex_;
  std::string reason_;
};

}  // namespace

std::unique_ptr<Communicator> make_single() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace lockstep::collective
