#include "lockstep/collective/nccl.h"

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/collective/members.h"
#include "lockstep/collective/operation_communicator.h"

namespace lockstep::collective {
namespace {

using Clock = std::chrono::steady_clock;

void must(cudaError_t code, const char* what) {
  if (code != cudaSuccess) {
    throw CollectiveError(
        fmt::format("cuda: {}: {}", what, cudaGetErrorString(code)));
  }
}

ncclDataType_t type_of(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kBFloat16:
      return ncclBfloat16;
    case DataType::kFloat64:
      return ncclFloat64;
    case DataType::kInt32:
      return ncclInt32;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kUint8:
      return ncclUint8;
  }
  return ncclUint8;
}

ncclRedOp_t op_of(ReduceOp op) {
  return op == ReduceOp::kSum   ? ncclSum
         : op == ReduceOp::kMin ? ncclMin
                                : ncclMax;
}

std::string to_text(const ncclUniqueId& id) {
  std::string text;
  for (const char byte : id.internal) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

ncclUniqueId from_text(const std::string& text) {
  ncclUniqueId id{};
  if (text.size() != 2 * sizeof id.internal) {
    throw CollectiveError("nccl: rank 0 published garbage");
  }
  for (size_t i = 0; i < sizeof id.internal; ++i) {
    id.internal[i] =
        static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

// CUDA's current device belongs to the thread, and operations are launched
// from LibTorch's threads too.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    must(cudaGetDevice(&before_), "cudaGetDevice");
    must(cudaSetDevice(device), "cudaSetDevice");
  }
  ~OnDevice() { cudaSetDevice(before_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
};

struct Event {
  Event() {
    must(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming), "event");
  }
  ~Event() { cudaEventDestroy(handle); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t handle = nullptr;
};

bool lies_on_host(const void* data) {
  cudaPointerAttributes about{};
  if (cudaPointerGetAttributes(&about, data) != cudaSuccess) {
    cudaGetLastError();  // or the next call would report it
    return true;
  }
  return about.type == cudaMemoryTypeUnregistered ||
         about.type == cudaMemoryTypeHost;
}

// The communicator of NCCL, non-blocking so that no call can hang: whoever
// waits polls under the deadline and looks for an abort.
class NcclGroup {
 public:
  NcclGroup(const GroupOptions& options, wire::Rendezvous& rendezvous)
      : rank(options.rank),
        size(options.world_size),
        device(std::max(0, options.device)),
        timeout_(options.timeout) {
    const OnDevice here(device);
    const os::Deadline deadline = os::Deadline::after(timeout_);
    ncclUniqueId id{};
    if (rank == 0) {
      check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    }
    const auto all =
        exchange(options, rendezvous, "nccl", to_text(id), deadline);
    id = from_text(all[0]);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t begun =
        ncclCommInitRankConfig(&comm, size, id, rank, &config);
    if (begun != ncclInProgress) {
      check(begun, "ncclCommInitRankConfig");
    }
    settle("ncclCommInitRankConfig");
    must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    must(cudaStreamCreateWithFlags(&copies_, cudaStreamNonBlocking), "stream");
    must(cudaMalloc(&token, 8), "cudaMalloc");
    must(cudaMemset(token, 0, 8), "cudaMemset");
  }
  ~NcclGroup() {
    if (comm != nullptr) {
      // Kernels of a dead group spin until this.
      ncclCommAbort(comm);
    }
    cudaFree(token);
    for (const Block& block : idle_) {
      cudaFree(block.data);
    }
    cudaStreamDestroy(stream);
    cudaStreamDestroy(copies_);
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // GPU memory for data that lies on the host.
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
  };
  Block take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto fitting = std::ranges::find_if(
        idle_, [&](const Block& block) { return block.bytes >= bytes; });
    if (fitting != idle_.end()) {
      const Block block = *fitting;
      idle_.erase(fitting);
      return block;
    }
    Block block{nullptr, std::max<size_t>(bytes, 4096)};
    must(cudaMalloc(&block.data, block.bytes), "cudaMalloc");
    return block;
  }
  void give_back(const Block& block) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(block);
  }
  // On a stream that no collective is on: those may wait for a lost rank.
  void copy(void* to, const void* from, size_t bytes) {
    must(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, copies_),
        "cudaMemcpyAsync");
    must(cudaStreamSynchronize(copies_), "cudaStreamSynchronize");
  }

  bool failed() const { return failed_.load(); }

  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex_);
    if (!failed_.load()) {
      reason_ = reason.empty() ? "aborted" : reason;
      failed_.store(true);
    }
  }

  void throw_if_failed() {
    if (failed_.load()) {
      const std::lock_guard lock(mutex_);
      throw CollectiveError(reason_);
    }
  }

  void check(ncclResult_t code, const char* what) {
    if (code != ncclSuccess && code != ncclInProgress) {
      fail(fmt::format("nccl: {}: {}", what, ncclGetErrorString(code)));
    }
  }

  // Until the last call is enqueued.
  void settle(const char* what) {
    poll(what, [] { return true; });
  }

  // Until `done` holds and NCCL has nothing in progress.
  template <class Done>
  void poll(const std::string& what, const Done& done) {
    const os::Deadline deadline = os::Deadline::after(timeout_);
    for (;;) {
      throw_if_failed();
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(comm, &state), "ncclCommGetAsyncError");
      check(state, what.c_str());
      if (state == ncclSuccess && done()) {
        return;
      }
      if (deadline.passed()) {
        fail(
            fmt::format(
                "{}: not done after {}; nccl does not say which rank is "
                "missing",
                what,
                format_duration(timeout_)));
      }
      std::this_thread::yield();
    }
  }

  [[noreturn]] void fail(const std::string& reason) {
    abort(reason);
    throw CollectiveError(reason);
  }

  const int rank;
  const int size;
  const int device;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  void* token = nullptr;  // for barriers

 private:
  const Duration timeout_;
  std::atomic<bool> failed_{false};
  cudaStream_t copies_ = nullptr;
  std::mutex mutex_;
  std::string reason_;
  std::vector<Block> idle_;
};

class NcclWork : public Work::State {
 public:
  NcclWork(
      std::shared_ptr<NcclGroup> group,
      const Operation& operation,
      void* stream)
      : group_(std::move(group)), operation_(operation), here_(group_->device) {
    group_->throw_if_failed();
    const size_t bytes = operation.bytes(group_->size);
    place_ = operation.data;
    if (bytes == 0) {
      place_ = group_->token;
    } else if (lies_on_host(operation.data)) {
      block_ = group_->take(bytes);
      place_ = block_.data;
      group_->copy(place_, operation.data, bytes);
    }
    must(
        cudaEventRecord(event_.handle, static_cast<cudaStream_t>(stream)),
        "cudaEventRecord");
    must(
        cudaStreamWaitEvent(group_->stream, event_.handle, 0),
        "cudaStreamWaitEvent");
    enqueue();
    group_->settle("enqueueing");
    must(cudaEventRecord(event_.handle, group_->stream), "cudaEventRecord");
    here_.reset();
  }
  ~NcclWork() override {
    try {
      wait();
    } catch (const CollectiveError&) {
      // Said by every other call on the group.
    }
  }

  Timing wait() override {
    if (finished_) {
      return {};
    }
    const auto begin = Clock::now();
    group_->poll(describe(operation_), [&] { return ready(); });
    if (block_.data != nullptr) {
      const OnDevice here(group_->device);
      group_->copy(operation_.data, place_, operation_.bytes(group_->size));
      group_->give_back(block_);
    }
    finished_ = true;
    return {0, std::chrono::duration<double>(Clock::now() - begin).count()};
  }
  bool done() override { return finished_ || ready() || group_->failed(); }

 private:
  bool ready() {
    const cudaError_t state = cudaEventQuery(event_.handle);
    if (state != cudaErrorNotReady) {
      must(state, "cudaEventQuery");
    }
    return state == cudaSuccess;
  }

  void enqueue() {
    const Operation& o = operation_;
    cudaStream_t on = group_->stream;
    auto* data = static_cast<std::byte*>(place_);
    std::byte* own =
        data + o.count * size_of(o.type) * static_cast<size_t>(group_->rank);
    const ncclDataType_t type = type_of(o.type);
    const ncclRedOp_t op = op_of(o.op);
    ncclComm_t comm = group_->comm;
    ncclResult_t code = ncclSuccess;
    switch (o.kind) {
      case Kind::kAllReduce:
        code = ncclAllReduce(data, data, o.count, type, op, comm, on);
        break;
      case Kind::kReduceScatter:
        code = ncclReduceScatter(data, own, o.count, type, op, comm, on);
        break;
      case Kind::kAllGather:
        code = ncclAllGather(own, data, o.count, type, comm, on);
        break;
      case Kind::kBroadcast:
        code = ncclBroadcast(data, data, o.count, type, o.root, comm, on);
        break;
      default:
        code = ncclAllReduce(
            group_->token, group_->token, 1, ncclInt32, ncclSum, comm, on);
        break;
    }
    group_->check(code, "enqueueing");
  }

  std::shared_ptr<NcclGroup> group_;
  Operation operation_;
  std::optional<OnDevice> here_;  // while it is launched
  Event event_;  // what comes before, then the operation itself
  NcclGroup::Block block_;
  void* place_ = nullptr;  // of the data, on the GPU
  bool finished_ = false;
};

class NcclCommunicator : public OperationCommunicator {
 public:
  NcclCommunicator(const GroupOptions& options, wire::Rendezvous& rendezvous)
      : group_(std::make_shared<NcclGroup>(options, rendezvous)) {}
  int rank() const override { return group_->rank; }
  int size() const override { return group_->size; }
  std::string name() const override { return "nccl"; }
  bool takes_device_memory() const override { return true; }
  Buffer allocate(size_t bytes) override {
    const OnDevice here(group_->device);
    void* data = nullptr;
    must(cudaMalloc(&data, bytes == 0 ? 1 : bytes), "cudaMalloc");
    must(cudaMemset(data, 0, bytes), "cudaMemset");
    return Buffer(
        std::shared_ptr<void>(data, [](void* p) { cudaFree(p); }), bytes);
  }
  void abort(const std::string& reason) override { group_->abort(reason); }
  bool failed() const override { return group_->failed(); }

 protected:
  Timing run(const Operation& operation) override {
    return NcclWork(group_, operation, nullptr).wait();
  }
  Work launch(const Operation& operation, void* stream) override {
    return Work(std::make_shared<NcclWork>(group_, operation, stream));
  }

 private:
  std::shared_ptr<NcclGroup> group_;
};

}  // namespace

bool has_nccl() {
  return true;
}

std::string gpu_address(int device) {
  char address[32] = {};
  if (device < 0 ||
      cudaDeviceGetPCIBusId(address, sizeof address, device) != cudaSuccess) {
    cudaGetLastError();
    return "";
  }
  return address;
}

std::unique_ptr<Communicator> make_nccl_communicator(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous) {
  return std::make_unique<NcclCommunicator>(options, rendezvous);
}

}  // namespace lockstep::collective
