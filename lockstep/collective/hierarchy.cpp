#include "lockstep/collective/hierarchy.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "lockstep/collective/operation_communicator.h"
#include "lockstep/collective/ticks.h"

namespace lockstep::collective {
namespace {

// What the ranks of a host reduce while the ring moves the piece before.
constexpr size_t kPiece = 4 << 20;

// One operation, carried through the levels. Calls come from one thread at a
// time. Pieces of data and their order are the same on all ranks.
class Levels {
 public:
  explicit Levels(HostGroup& group)
      : group_(group),
        shared_(group.shared()),
        ring_(group.ring()),
        alone_(group.local_ranks().size() == 1) {}

  // Returns when the last rank had arrived, in ticks, as far as we know.
  uint64_t run(const Operation& operation) {
    if (shared_.failed()) {
      shared_.throw_failure();
    }
    met_ = 0;
    shared_.speak_of(operation, ++number_);
    switch (operation.kind) {
      case Kind::kAllReduce:
        all_reduce(operation);
        break;
      case Kind::kReduceScatter:
        reduce_scatter(operation);
        break;
      case Kind::kAllGather:
        all_gather(operation);
        break;
      case Kind::kBroadcast:
        broadcast(operation);
        break;
      default:
        barrier(operation);
        break;
    }
    return met_ == 0 ? ticks() : met_;
  }

 private:
  static std::byte* at(const Operation& operation, size_t element) {
    return static_cast<std::byte*>(operation.data) +
           element * size_of(operation.type);
  }

  uint64_t
  local(Kind kind, const Operation& o, size_t from, size_t count, int root) {
    return shared_.launch({kind, o.type, o.op, root, count, at(o, from)});
  }

  void meet(const Operation& operation) {
    ring_->meet(operation);
    met_ = ticks();
  }

  void barrier(const Operation& operation) {
    if (!alone_) {
      shared_.wait(shared_.launch({}), true);
    }
    if (ring_ != nullptr) {
      meet(operation);
    }
    if (!alone_) {
      shared_.wait(shared_.launch({}));
    }
    met_ = ticks();
  }

  void all_reduce(const Operation& o) {
    const size_t bytes = o.count * size_of(o.type);
    const bool direct = bytes <= direct_bytes();
    if (alone_) {
      if (direct) {
        ring_->meet_and_reduce(o, at(o, 0));
        met_ = ticks();
      } else {
        meet(o);
        ring_->all_reduce(at(o, 0), o.count, o.type, o.op);
      }
      return;
    }
    const size_t piece = kPiece / size_of(o.type);
    const auto length = [&](size_t from) {
      return std::min(piece, o.count - from);
    };
    uint64_t ready = local(Kind::kReduce, o, 0, length(0), 0);
    shared_.wait(ready, true);
    met_ = ticks();
    for (size_t from = 0; from < o.count || from == 0; from += piece) {
      uint64_t following = ready;
      if (from + piece < o.count) {
        following =
            local(Kind::kReduce, o, from + piece, length(from + piece), 0);
      }
      if (ring_ != nullptr) {
        shared_.wait(ready);
        if (direct) {
          ring_->meet_and_reduce(o, at(o, 0));
          met_ = ticks();
        } else {
          if (from == 0) {
            meet(o);
          }
          ring_->all_reduce(at(o, from), length(from), o.type, o.op);
        }
      }
      local(Kind::kBroadcast, o, from, length(from), 0);
      ready = following;
    }
    shared_.drain();
  }

  size_t direct_bytes() const {
    return Ring::direct_bytes(static_cast<int>(group_.layout().hosts.size()));
  }

  // The blocks of each host's ranks, neighbours joined.
  std::vector<Extents> parts(const Operation& o) const {
    const size_t block = o.count * size_of(o.type);
    std::vector<Extents> parts;
    for (const std::vector<int>& ranks : group_.layout().hosts) {
      Extents extents;
      for (const int rank : ranks) {
        const size_t offset = block * static_cast<size_t>(rank);
        if (!extents.empty() &&
            extents.back().offset + extents.back().bytes == offset) {
          extents.back().bytes += block;
        } else {
          extents.push_back({offset, block});
        }
      }
      parts.push_back(std::move(extents));
    }
    return parts;
  }

  void reduce_scatter(const Operation& o) {
    const auto size = static_cast<size_t>(group_.size());
    if (!alone_) {
      shared_.wait(local(Kind::kReduce, o, 0, o.count * size, 0), true);
    }
    if (ring_ != nullptr) {
      meet(o);
      ring_->reduce_scatter(at(o, 0), parts(o), o.type, o.op);
    }
    if (!alone_) {
      for (const int rank : group_.local_ranks()) {
        local(
            Kind::kBroadcast,
            o,
            o.count * static_cast<size_t>(rank),
            o.count,
            0);
      }
      shared_.drain();
    }
  }

  void all_gather(const Operation& o) {
    if (!alone_) {
      int index = 0;
      for (const int rank : group_.local_ranks()) {
        const uint64_t number = local(
            Kind::kBroadcast,
            o,
            o.count * static_cast<size_t>(rank),
            o.count,
            index++);
        if (index == 1) {
          shared_.wait(number, true);
        }
      }
      shared_.drain();
    }
    const std::vector<Extents> all = parts(o);
    if (ring_ != nullptr) {
      meet(o);
      ring_->all_gather(at(o, 0), all);
    }
    if (!alone_) {
      const size_t element = size_of(o.type);
      const auto own =
          group_.layout().host_of[static_cast<size_t>(group_.rank())];
      for (size_t host = 0; host < all.size(); ++host) {
        if (static_cast<int>(host) == own) {
          continue;
        }
        for (const Extent& extent : all[host]) {
          local(
              Kind::kBroadcast,
              o,
              extent.offset / element,
              extent.bytes / element,
              0);
        }
      }
      shared_.drain();
    }
  }

  void broadcast(const Operation& o) {
    const Layout& layout = group_.layout();
    const auto root = static_cast<size_t>(o.root);
    const int root_host = layout.host_of[root];
    const bool from_here =
        root_host == layout.host_of[static_cast<size_t>(group_.rank())];
    if (!alone_) {
      // Arrival of all on this host, with the data when it starts here.
      shared_.wait(
          from_here
              ? local(Kind::kBroadcast, o, 0, o.count, layout.index_of[root])
              : shared_.launch({}),
          true);
      met_ = ticks();
    }
    if (ring_ != nullptr) {
      meet(o);
    }
    const size_t piece = kPiece / size_of(o.type);
    for (size_t from = 0; from < o.count; from += piece) {
      const size_t length = std::min(piece, o.count - from);
      if (ring_ != nullptr) {
        ring_->broadcast(at(o, from), length * size_of(o.type), root_host);
      }
      if (!alone_ && !from_here) {
        local(Kind::kBroadcast, o, from, length, 0);
      }
    }
    shared_.drain();
  }

  HostGroup& group_;
  SharedGroup& shared_;
  Ring* ring_;
  const bool alone_;
  uint64_t met_ = 0;
  uint64_t number_ = 0;
};

// An operation that the communicator's thread runs.
struct Task {
  Operation operation;
  bool done = false;
  uint64_t met = 0;
  std::exception_ptr error;
};

// Shared by the communicator and its operations under way.
class Runner {
 public:
  explicit Runner(std::shared_ptr<HostGroup> group)
      : group_(std::move(group)), levels_(*group_) {}
  ~Runner() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) {
      thread_.join();
    }
  }

  HostGroup& group() { return *group_; }

  Timing run(const Operation& operation) {
    std::unique_lock lock(mutex_);
    const uint64_t start = ticks();
    if (!queue_.empty() || busy_) {
      auto task = enqueue(operation);
      return wait(lock, *task, start);
    }
    // The caller holds the lock throughout: the thread has nothing to do.
    const uint64_t met = levels_.run(operation);
    return split(start, met);
  }

  std::shared_ptr<Task> launch(const Operation& operation) {
    const std::lock_guard lock(mutex_);
    return enqueue(operation);
  }

  Timing wait(Task& task) {
    const uint64_t start = ticks();
    std::unique_lock lock(mutex_);
    return wait(lock, task, start);
  }

  bool done(const Task& task) {
    const std::lock_guard lock(mutex_);
    return task.done;
  }

 private:
  std::shared_ptr<Task> enqueue(const Operation& operation) {
    auto task = std::make_shared<Task>();
    task->operation = operation;
    queue_.push_back(task);
    if (!thread_.joinable()) {
      thread_ = std::thread([this] { work(); });
    }
    changed_.notify_all();
    return task;
  }

  Timing wait(std::unique_lock<std::mutex>& lock, Task& task, uint64_t start) {
    // Bounded: every wait inside the operation has its deadline.
    changed_.wait(lock, [&] { return task.done; });
    if (task.error) {
      std::rethrow_exception(task.error);
    }
    return split(start, task.met);
  }

  static Timing split(uint64_t start, uint64_t met) {
    const uint64_t total = ticks() - start;
    const uint64_t wait = met > start ? std::min(met - start, total) : 0;
    const double tick = seconds_per_tick();
    return {
        static_cast<double>(wait) * tick,
        static_cast<double>(total - wait) * tick};
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) {
        return;
      }
      auto task = queue_.front();
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      try {
        task->met = levels_.run(task->operation);
      } catch (...) {
        task->error = std::current_exception();
      }
      lock.lock();
      busy_ = false;
      task->done = true;
      changed_.notify_all();
    }
  }

  std::shared_ptr<HostGroup> group_;
  Levels levels_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Task>> queue_;
  bool busy_ = false;
  bool ending_ = false;
  std::thread thread_;
};

class TaskWork : public Work::State {
 public:
  TaskWork(std::shared_ptr<Runner> runner, const Operation& operation)
      : runner_(std::move(runner)), task_(runner_->launch(operation)) {}
  ~TaskWork() override {
    try {
      runner_->wait(*task_);
    } catch (const CollectiveError&) {
      // Said by every other call on the group.
    }
  }
  Timing wait() override { return runner_->wait(*task_); }
  bool done() override { return runner_->done(*task_); }

 private:
  std::shared_ptr<Runner> runner_;
  std::shared_ptr<Task> task_;
};

class HierarchyCommunicator : public OperationCommunicator {
 public:
  explicit HierarchyCommunicator(std::shared_ptr<HostGroup> group)
      : group_(group), runner_(std::make_shared<Runner>(std::move(group))) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  std::string name() const override { return "host"; }
  Buffer allocate(size_t bytes) override {
    return group_->memory()->allocate(bytes);
  }
  std::shared_ptr<Memory> memory() const override { return group_->memory(); }
  void abort(const std::string& reason) override {
    group_->abort({reason, {}});
  }
  bool failed() const override { return group_->shared().failed(); }

 protected:
  Timing run(const Operation& operation) override {
    return runner_->run(operation);
  }
  Work launch(const Operation& operation, void*) override {
    return Work(std::make_shared<TaskWork>(runner_, operation));
  }

 private:
  std::shared_ptr<HostGroup> group_;
  std::shared_ptr<Runner> runner_;
};

}  // namespace

std::unique_ptr<Communicator> make_hierarchy(std::shared_ptr<HostGroup> group) {
  return std::make_unique<HierarchyCommunicator>(std::move(group));
}

}  // namespace lockstep::collective
