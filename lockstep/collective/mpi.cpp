#include "lockstep/collective/mpi.h"

#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "lockstep/collective/mpi_runtime.h"
#include "lockstep/collective/operation_communicator.h"
#include "lockstep/os/clock.h"

namespace lockstep::collective {
namespace {

using Clock = std::chrono::steady_clock;

// Tags of the control communicator.
constexpr int kAbortTag = 1;
constexpr int kArrivedTag = 2;
constexpr size_t kMaxReason = 1000;
// How long ranks that passed their deadline tell each other so.
constexpr Duration kRollCall = std::chrono::milliseconds(500);
// For what is under way when a rank tells that it failed.
constexpr Duration kGrace = std::chrono::milliseconds(500);
constexpr size_t kMaxCount = size_t{1} << 30;  // MPI counts are int

// The communicator of MPI and what waits on it share; lives as long as either.
class MpiGroup {
 public:
  explicit MpiGroup(const GroupOptions& options) : timeout_(options.timeout) {
    initialise_mpi();
    must(MPI_Comm_rank(MPI_COMM_WORLD, &rank), "MPI_Comm_rank");
    must(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
    if (rank != options.rank || size != options.world_size) {
      throw CollectiveError(
          fmt::format(
              "mpi: this is rank {} of {} to MPI, but {} of {} to lockstep; "
              "start "
              "every rank with mpirun",
              rank,
              size,
              options.rank,
              options.world_size));
    }
    must(MPI_Comm_dup(MPI_COMM_WORLD, &data), "MPI_Comm_dup");
    must(MPI_Comm_dup(MPI_COMM_WORLD, &control_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(data, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(control_, MPI_ERRORS_RETURN);
  }
  ~MpiGroup() {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized != 0) {
      return;
    }
    // Nothing else tells the others: MPI keeps a rank that ends until all do.
    if (std::uncaught_exceptions() > 0) {
      set_failure(fmt::format("rank {} failed", rank), {});
    }
    // A dead group has requests under way: MPI keeps them.
    if (failed()) {
      tell();
      return;
    }
    MPI_Comm_free(&data);
    MPI_Comm_free(&control_);
  }

  bool failed() const { return failed_.load(); }

  void abort(const std::string& reason) {
    set_failure(reason, {});
    if (may_call_mpi_from_any_thread()) {
      tell();
    }
  }

  void check() {
    hear();
    if (failed()) {
      fail();
    }
  }

  // Polls until all are done. Returns when the first was.
  Clock::time_point finish(
      std::vector<MPI_Request>& requests,
      const Operation& operation,
      uint64_t number) {
    const os::Deadline deadline = os::Deadline::after(timeout_);
    Clock::time_point first{};
    for (int spins = 0;; ++spins) {
      if (first == Clock::time_point{}) {
        int done = 0;
        must(MPI_Test(&requests[0], &done, MPI_STATUS_IGNORE), "MPI_Test");
        if (done != 0) {
          first = Clock::now();
        }
      }
      int done = 0;
      must(
          MPI_Testall(
              static_cast<int>(requests.size()),
              requests.data(),
              &done,
              MPI_STATUSES_IGNORE),
          "MPI_Testall");
      if (done != 0) {
        return first == Clock::time_point{} ? Clock::now() : first;
      }
      if (spins % 64 == 63) {
        hear();
        // What all ranks entered comes to its end, though one of them, being
        // through with it, failed since.
        if (failed() && !grace_) {
          grace_ = os::Deadline::after(kGrace);
        }
        if (grace_ && grace_->passed()) {
          fail();
        }
        if (deadline.passed()) {
          fail_missing(operation, number);
        }
        std::this_thread::yield();
      }
    }
  }

  int rank = 0;
  int size = 1;
  MPI_Comm data = MPI_COMM_NULL;
  uint64_t launched = 0;

 private:
  // Whether another rank gave up.
  void hear() {
    int there = 0;
    MPI_Status status;
    MPI_Iprobe(MPI_ANY_SOURCE, kAbortTag, control_, &there, &status);
    if (there != 0) {
      char text[kMaxReason] = {};
      MPI_Recv(
          text,
          kMaxReason - 1,
          MPI_CHAR,
          status.MPI_SOURCE,
          kAbortTag,
          control_,
          MPI_STATUS_IGNORE);
      told_.store(true);  // the sender told the others too
      set_failure(text, {});
    }
  }

  [[noreturn]] void fail() {
    tell();
    const std::lock_guard lock(mutex_);
    throw CollectiveError(reason_, ranks_);
  }

  void set_failure(const std::string& reason, std::vector<int> ranks) {
    const std::lock_guard lock(mutex_);
    if (reason_.empty()) {
      reason_ = (reason.empty() ? "aborted" : reason).substr(0, kMaxReason - 1);
      ranks_ = std::move(ranks);
    }
    failed_.store(true);
  }

  void tell() {
    if (told_.exchange(true)) {
      return;
    }
    static std::string kept;  // until the sends are over, which nobody awaits
    {
      const std::lock_guard lock(mutex_);
      kept = reason_;
    }
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) {
        MPI_Request request;
        MPI_Isend(
            kept.data(),
            static_cast<int>(kept.size()),
            MPI_CHAR,
            peer,
            kAbortTag,
            control_,
            &request);
        MPI_Request_free(&request);
      }
    }
  }

  // MPI does not say who is missing. Those who wait call out to each other;
  // who does not answer is not waiting.
  [[noreturn]] void fail_missing(const Operation& operation, uint64_t number) {
    static uint64_t sent;
    sent = number;
    std::vector<bool> heard(static_cast<size_t>(size), false);
    heard[static_cast<size_t>(rank)] = true;
    for (int peer = 0; peer < size; ++peer) {
      if (peer != rank) {
        MPI_Request request;
        MPI_Isend(
            &sent, 1, MPI_UINT64_T, peer, kArrivedTag, control_, &request);
        MPI_Request_free(&request);
      }
    }
    const os::Deadline deadline = os::Deadline::after(kRollCall);
    while (!deadline.passed() && !std::ranges::all_of(heard, std::identity{})) {
      int there = 0;
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, kArrivedTag, control_, &there, &status);
      if (there != 0) {
        uint64_t other = 0;
        MPI_Recv(
            &other,
            1,
            MPI_UINT64_T,
            status.MPI_SOURCE,
            kArrivedTag,
            control_,
            MPI_STATUS_IGNORE);
        heard[static_cast<size_t>(status.MPI_SOURCE)] = other >= number;
      }
      std::this_thread::yield();
    }
    std::vector<int> missing;
    for (int peer = 0; peer < size; ++peer) {
      if (!heard[static_cast<size_t>(peer)]) {
        missing.push_back(peer);
      }
    }
    set_failure(
        fmt::format(
            "{} (operation {}): {} did not arrive after {}",
            describe(operation),
            number,
            missing.empty() ? "a rank" : name_ranks(missing),
            format_duration(timeout_)),
        missing);
    told_.store(true);  // everybody found out in the same way
    const std::lock_guard lock(mutex_);
    throw CollectiveError(reason_, ranks_);
  }

  const Duration timeout_;
  MPI_Comm control_ = MPI_COMM_NULL;
  std::atomic<bool> failed_{false};
  std::atomic<bool> told_{false};
  std::optional<os::Deadline> grace_;
  std::mutex mutex_;
  std::string reason_;
  std::vector<int> ranks_;
};

// A barrier beside each operation shows when the last rank arrived.
class MpiWork : public Work::State {
 public:
  MpiWork(std::shared_ptr<MpiGroup> group, const Operation& operation)
      : group_(std::move(group)),
        operation_(operation),
        number_(++group_->launched) {
    group_->check();
    requests_.emplace_back();
    must(MPI_Ibarrier(group_->data, &requests_.back()), "MPI_Ibarrier");
    start();
  }
  ~MpiWork() override {
    try {
      wait();
    } catch (const CollectiveError&) {
      // Said by every other call on the group.
    }
  }

  Timing wait() override {
    if (done_) {
      return {};
    }
    const auto begin = Clock::now();
    const auto met = group_->finish(requests_, operation_, number_);
    const auto end = Clock::now();
    done_ = true;
    if (!copy_.empty()) {
      std::memcpy(copy_to_, copy_.data(), copy_.size());
    }
    const std::chrono::duration<double> total = end - begin;
    const std::chrono::duration<double> wait = std::max(met, begin) - begin;
    return {wait.count(), total.count() - wait.count()};
  }

  bool done() override {
    if (!done_) {
      int all = 0;
      MPI_Testall(
          static_cast<int>(requests_.size()),
          requests_.data(),
          &all,
          MPI_STATUSES_IGNORE);
      if (all != 0) {
        wait();
      }
    }
    return done_ || group_->failed();
  }

 private:
  // In pieces, where the count is more than MPI's int.
  template <class Call>
  void in_pieces(size_t count, const Call& call) {
    for (size_t from = 0; from < count; from += kMaxCount) {
      requests_.emplace_back();
      call(from, static_cast<int>(std::min(kMaxCount, count - from)));
    }
  }

  void start() {
    const Operation& o = operation_;
    MPI_Comm comm = group_->data;
    const MPI_Datatype type = mpi_type(o.type);
    const MPI_Op op = mpi_op(o.type, o.op);
    const size_t element = size_of(o.type);
    auto* data = static_cast<std::byte*>(o.data);
    const size_t block = o.count * element;
    std::byte* own = data + block * static_cast<size_t>(group_->rank);
    if (o.count > kMaxCount && o.kind != Kind::kAllReduce &&
        o.kind != Kind::kBroadcast) {
      throw CollectiveError(
          fmt::format("mpi: a block has at most {} elements", kMaxCount));
    }
    switch (o.kind) {
      case Kind::kAllReduce:
        in_pieces(o.count, [&](size_t from, int count) {
          must(
              MPI_Iallreduce(
                  MPI_IN_PLACE,
                  data + from * element,
                  count,
                  type,
                  op,
                  comm,
                  &requests_.back()),
              "MPI_Iallreduce");
        });
        break;
      case Kind::kReduceScatter:
        copy_.resize(block);
        copy_to_ = own;
        in_pieces(o.count, [&](size_t, int count) {
          must(
              MPI_Ireduce_scatter_block(
                  data, copy_.data(), count, type, op, comm, &requests_.back()),
              "MPI_Ireduce_scatter_block");
        });
        break;
      case Kind::kAllGather:
        in_pieces(o.count, [&](size_t, int count) {
          must(
              MPI_Iallgather(
                  MPI_IN_PLACE,
                  count,
                  type,
                  data,
                  count,
                  type,
                  comm,
                  &requests_.back()),
              "MPI_Iallgather");
        });
        break;
      case Kind::kBroadcast:
        in_pieces(o.count, [&](size_t from, int count) {
          must(
              MPI_Ibcast(
                  data + from * element,
                  count,
                  type,
                  o.root,
                  comm,
                  &requests_.back()),
              "MPI_Ibcast");
        });
        break;
      default:
        break;
    }
  }

  std::shared_ptr<MpiGroup> group_;
  Operation operation_;
  uint64_t number_;
  std::vector<MPI_Request> requests_;
  std::vector<std::byte> copy_;
  std::byte* copy_to_ = nullptr;
  bool done_ = false;
};

class MpiCommunicator : public OperationCommunicator {
 public:
  explicit MpiCommunicator(const GroupOptions& options)
      : group_(std::make_shared<MpiGroup>(options)), local_(make_single()) {}
  int rank() const override { return group_->rank; }
  int size() const override { return group_->size; }
  std::string name() const override { return "mpi"; }
  Buffer allocate(size_t bytes) override { return local_->allocate(bytes); }
  void abort(const std::string& reason) override { group_->abort(reason); }
  bool failed() const override { return group_->failed(); }

 protected:
  Timing run(const Operation& operation) override {
    return MpiWork(group_, operation).wait();
  }
  Work launch(const Operation& operation, void*) override {
    return Work(std::make_shared<MpiWork>(group_, operation));
  }

 private:
  std::shared_ptr<MpiGroup> group_;
  std::unique_ptr<Communicator> local_;  // plain memory
};

}  // namespace

bool has_mpi() {
  return true;
}

std::unique_ptr<Communicator> make_mpi_communicator(
    const GroupOptions& options) {
  return std::make_unique<MpiCommunicator>(options);
}

}  // namespace lockstep::collective
