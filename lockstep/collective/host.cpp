#include "lockstep/collective/hierarchy.h"
#include "lockstep/collective/host_group.h"
#include "lockstep/collective/operation_communicator.h"

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
class SharedCommunicator : public OperationCommunicator {
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
  void progress() override { shared_.progress(); }
  void abort(const std::string& reason) override {
    group_->abort({reason, {}});
  }
  bool failed() const override { return shared_.failed(); }
  bool takes_pieces() const override { return true; }
  Work gather_pieces_async(
      const void* part,
      void* whole,
      const Pieces& pieces,
      DataType type) override {
    return launch(
        {Kind::kGatherPieces,
         type,
         ReduceOp::kSum,
         0,
         pieces.part,
         whole,
         const_cast<void*>(part),
         &pieces},
        nullptr);
  }
  Work scatter_pieces_async(
      const void* whole,
      void* part,
      const Pieces& pieces,
      DataType type,
      ReduceOp op) override {
    return launch(
        {Kind::kScatterPieces,
         type,
         op,
         0,
         pieces.part,
         const_cast<void*>(whole),
         part,
         &pieces},
        nullptr);
  }

 protected:
  Timing run(const Operation& operation) override {
    return shared_.run(operation);
  }
  Work launch(const Operation& operation, void*) override {
    return Work(std::make_shared<SharedWork>(group_, operation));
  }

 private:
  std::shared_ptr<HostGroup> group_;
  SharedGroup& shared_;
};

}  // namespace

std::unique_ptr<Communicator> make_host_communicator(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous) {
  auto group = HostGroup::join(options, rendezvous);
  if (group->layout().hosts.size() > 1) {
    return make_hierarchy(std::move(group));
  }
  return std::make_unique<SharedCommunicator>(std::move(group));
}

}  // namespace lockstep::collective
