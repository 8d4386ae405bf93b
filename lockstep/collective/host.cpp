#include <mutex>

#include "lockstep/collective/host_group.h"
#include "lockstep/collective/operation.h"

namespace lockstep::collective {
namespace {

// An operation in shared memory: progress is made by whoever calls.
class SharedWork : public Work::State {
 public:
  SharedWork(std::shared_ptr<HostGroup> group, const Operation& operation)
      : group_(std::move(group)),
        number_(group_->shared().launch(operation, &spent_)) {}
  ~SharedWork() override {
    try {
      group_->shared().wait(number_);
    } catch (const CollectiveError&) {
      // Said by every other call on the group.
    }
  }
  Timing wait() override {
    Timing timing = group_->shared().wait(number_);
    timing.busy += spent_.busy;
    spent_ = {};
    return timing;
  }
  bool done() override { return group_->shared().done(number_); }

 private:
  std::shared_ptr<HostGroup> group_;
  Timing spent_;
  uint64_t number_;
};

// All ranks on one host.
class SharedCommunicator : public Communicator {
 public:
  explicit SharedCommunicator(std::shared_ptr<HostGroup> group)
      : group_(std::move(group)), shared_(group_->shared()) {}
  ~SharedCommunicator() override {
    try {
      shared_.drain();
    } catch (const CollectiveError&) {
      // Nobody is left to tell; the other ranks were told the same.
    }
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string name() const override { return "host"; }
  Buffer allocate(size_t bytes) override {
    return group_->memory()->allocate(bytes);
  }
  std::shared_ptr<Memory> memory() const override { return group_->memory(); }

  Timing all_reduce(void* data, size_t count, DataType type, ReduceOp op)
      override {
    return shared_.run({Kind::kAllReduce, type, op, 0, count, data});
  }
  Timing reduce_scatter(void* data, size_t count, DataType type, ReduceOp op)
      override {
    return shared_.run({Kind::kReduceScatter, type, op, 0, count, data});
  }
  Timing all_gather(void* data, size_t count, DataType type) override {
    return shared_.run(
        {Kind::kAllGather, type, ReduceOp::kSum, 0, count, data});
  }
  Timing broadcast(void* data, size_t count, DataType type, int root) override {
    check_root(root, size());
    return shared_.run(
        {Kind::kBroadcast, type, ReduceOp::kSum, root, count, data});
  }
  Timing barrier() override { return shared_.run({}); }

  Work all_reduce_async(
      void* data,
      size_t count,
      DataType type,
      ReduceOp op,
      void*) override {
    return launch({Kind::kAllReduce, type, op, 0, count, data});
  }
  Work reduce_scatter_async(
      void* data,
      size_t count,
      DataType type,
      ReduceOp op,
      void*) override {
    return launch({Kind::kReduceScatter, type, op, 0, count, data});
  }
  Work all_gather_async(void* data, size_t count, DataType type, void*)
      override {
    return launch({Kind::kAllGather, type, ReduceOp::kSum, 0, count, data});
  }
  Work broadcast_async(void* data, size_t count, DataType type, int root, void*)
      override {
    check_root(root, size());
    return launch({Kind::kBroadcast, type, ReduceOp::kSum, root, count, data});
  }

  void progress() override { shared_.progress(); }
  void abort(const std::string& reason) override {
    group_->abort({reason, {}});
  }

 private:
  Work launch(const Operation& operation) {
    return Work(std::make_shared<SharedWork>(group_, operation));
  }

  std::shared_ptr<HostGroup> group_;
  SharedGroup& shared_;
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous) {
  auto group = HostGroup::join(options, rendezvous);
  return std::make_unique<SharedCommunicator>(std::move(group));
}

}  // namespace lockstep::collective
