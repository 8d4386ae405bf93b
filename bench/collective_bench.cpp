// Times all-reduce on shared memory and over TCP, and the limit it is held
// against: processes that sum shared buffers in place, each its part, with
// nothing but barriers around. Limit and ours alternate in the same processes,
// so that both see the same machine. One JSON line for each size on stdout.
//
//   collective_bench shared RANKS          limit and ours, forked processes
//   collective_bench ring RANKS            ours, each process its own host
//   collective_bench rank R RANKS ADDRESS [OWN_ADDRESS]
//       one rank of a ring; rank 0 serves the rendezvous at ADDRESS
//
// Last argument --sizes A,B,...: bytes.

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/collective/factory.h"
#include "lockstep/collective/kernels.h"
#include "lockstep/collective/ticks.h"

namespace lockstep::collective {
namespace {

using Clock = std::chrono::steady_clock;

double microseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start)
      .count();
}

// What the processes of the limit share besides their buffers.
struct Shared {
  struct alignas(64) Flag {
    std::atomic<uint32_t> value;
  };
  Flag flags[64];
  alignas(64) std::atomic<uint32_t> arrived;
  alignas(64) std::atomic<uint32_t> generation;
};

class Limit {
 public:
  Limit(Shared* shared, std::byte* buffers, size_t most, int rank, int size)
      : shared_(shared),
        buffers_(buffers),
        most_(most),
        rank_(rank),
        size_(size),
        spin_(size <= static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN))) {}

  void all_reduce(size_t bytes) {
    barrier();
    const size_t part = bytes / static_cast<size_t>(size_) / 64 * 64;
    const size_t from = part * static_cast<size_t>(rank_);
    const size_t length = rank_ == size_ - 1 ? bytes - from : part;
    void* at[64];
    for (int i = 0; i < size_; ++i) {
      at[i] = buffers_ + most_ * static_cast<size_t>(i) + from;
    }
    reduce(
        at,
        size_,
        at,
        size_,
        length / sizeof(float),
        DataType::kFloat32,
        ReduceOp::kSum);
    barrier();
  }

 private:
  void barrier() { spin_ ? barrier_spinning() : barrier_sleeping(); }

  void barrier_spinning() {
    ++count_;
    shared_->flags[rank_].value.store(count_, std::memory_order_release);
    for (int i = 0; i < size_; ++i) {
      while (shared_->flags[i].value.load(std::memory_order_acquire) < count_) {
        pause_briefly();
      }
    }
  }

  void barrier_sleeping() {
    const uint32_t generation = shared_->generation.load();
    if (shared_->arrived.fetch_add(1) + 1 == static_cast<uint32_t>(size_)) {
      shared_->arrived.store(0);
      shared_->generation.fetch_add(1);
      syscall(
          SYS_futex,
          &shared_->generation,
          FUTEX_WAKE,
          INT_MAX,
          nullptr,
          nullptr,
          0);
      return;
    }
    while (shared_->generation.load() == generation) {
      syscall(
          SYS_futex,
          &shared_->generation,
          FUTEX_WAIT,
          generation,
          nullptr,
          nullptr,
          0);
    }
  }

  Shared* shared_;
  std::byte* buffers_;
  size_t most_;
  int rank_;
  int size_;
  bool spin_;
  uint32_t count_ = 0;
};

struct Plan {
  std::vector<size_t> sizes = {4 << 10, 1 << 20, 25 << 20, 100 << 20};
  int rounds = 9;
};

// Iterations of one round: about as long for each size.
int iterations_for(size_t bytes, double bytes_per_second) {
  const double seconds = 20e-6 + static_cast<double>(bytes) / bytes_per_second;
  return std::clamp(static_cast<int>(0.1 / seconds), 3, 20000);
}

template <class Body>
double time_round(int iterations, const Body& body) {
  const auto start = Clock::now();
  for (int i = 0; i < iterations; ++i) {
    body();
  }
  return microseconds_since(start) / iterations;
}

struct Times {
  std::vector<double> rounds;
  double median() {
    std::ranges::sort(rounds);
    return rounds[rounds.size() / 2];
  }
  double best() { return std::ranges::min(rounds); }
};

std::string to_json(size_t bytes, Times ours, Times limit) {
  std::string text = fmt::format(
      R"({{"bytes": {}, "ours_us": {:.3f}, "ours_best_us": {:.3f})",
      bytes,
      ours.median(),
      ours.best());
  if (!limit.rounds.empty()) {
    text += fmt::format(
        R"(, "limit_us": {:.3f}, "limit_best_us": {:.3f})",
        limit.median(),
        limit.best());
  }
  return text + "}";
}

void measure(Communicator& communicator, Limit* limit, const Plan& plan) {
  const size_t most = *std::ranges::max_element(plan.sizes);
  Buffer buffer = communicator.allocate(most);
  for (const size_t bytes : plan.sizes) {
    const auto run = [&] {
      communicator.all_reduce(
          buffer.data(),
          bytes / sizeof(float),
          DataType::kFloat32,
          ReduceOp::kSum);
    };
    const int iterations = iterations_for(bytes, limit ? 5e9 : 5e8);
    for (int i = 0; i < std::min(iterations, 500); ++i) {
      run();
    }
    Times ours;
    Times bound;
    for (int round = 0; round < plan.rounds; ++round) {
      communicator.barrier();
      if (limit != nullptr) {
        limit->all_reduce(bytes);
        bound.rounds.push_back(
            time_round(iterations, [&] { limit->all_reduce(bytes); }));
        communicator.barrier();
      }
      run();
      ours.rounds.push_back(time_round(iterations, run));
    }
    if (communicator.rank() == 0) {
      fmt::print("{}\n", to_json(bytes, ours, bound));
      std::fflush(stdout);
    }
  }
}

GroupOptions group_options(int rank, int size) {
  GroupOptions options;
  options.rank = rank;
  options.world_size = size;
  options.kind = "host";
  options.group = "bench";
  options.timeout = std::chrono::seconds(60);
  return options;
}

int run_rank(
    GroupOptions options,
    const os::Address& address,
    Limit* limit,
    const Plan& plan) {
  auto rendezvous = wire::connect_rendezvous(
      os::real_network(),
      address,
      Key{},
      os::Deadline::after(std::chrono::seconds(20)));
  if (!rendezvous) {
    fmt::print(stderr, "{}\n", rendezvous.error().to_string());
    return 1;
  }
  auto communicator = make_communicator(options, **rendezvous);
  measure(*communicator, limit, plan);
  return 0;
}

int run_forked(int size, bool ring, const Plan& plan) {
  const size_t most = *std::ranges::max_element(plan.sizes);
  const auto map = [](size_t bytes) {
    return static_cast<std::byte*>(mmap(
        nullptr,
        bytes,
        PROT_READ | PROT_WRITE,
        MAP_SHARED | MAP_ANONYMOUS,
        -1,
        0));
  };
  auto* shared = reinterpret_cast<Shared*>(map(sizeof(Shared)));
  std::byte* buffers = ring ? nullptr : map(most * static_cast<size_t>(size));
  int ends[2];
  if (pipe(ends) != 0) {
    return 1;
  }
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      uint16_t port = 0;
      if (read(ends[0], &port, sizeof port) != sizeof port) {
        _exit(1);
      }
      GroupOptions options = group_options(rank, size);
      options.advertise_host = "127.0.0.1";
      if (ring) {
        options.host_identity = fmt::format("host {}", rank);
      }
      Limit limit(shared, buffers, most, rank, size);
      int code = 1;
      try {
        code = run_rank(
            options, {"127.0.0.1", port, ""}, ring ? nullptr : &limit, plan);
      } catch (const std::exception& error) {
        fmt::print(stderr, "rank {}: {}\n", rank, error.what());
      }
      std::fflush(nullptr);
      _exit(code);
    }
    children.push_back(child);
  }
  auto server = wire::RendezvousServer::start(
      os::real_network(), {"127.0.0.1", 0, ""}, Key{});
  const uint16_t port = server ? (*server)->address().port : 0;
  for (int rank = 0; rank < size; ++rank) {
    if (write(ends[1], &port, sizeof port) != sizeof port) {
      return 1;
    }
  }
  int code = 0;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    code |= WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  return code;
}

int run_one(
    int rank,
    int size,
    const std::string& at,
    const std::string& own,
    const Plan& plan) {
  const auto address = os::parse_address(at);
  if (!address) {
    fmt::print(stderr, "{}\n", address.error().to_string());
    return 2;
  }
  std::unique_ptr<wire::RendezvousServer> server;
  if (rank == 0) {
    auto started =
        wire::RendezvousServer::start(os::real_network(), *address, Key{});
    if (!started) {
      fmt::print(stderr, "{}\n", started.error().to_string());
      return 1;
    }
    server = std::move(*started);
  }
  GroupOptions options = group_options(rank, size);
  options.host_identity = fmt::format("host {}", rank);
  options.advertise_host = own;
  return run_rank(options, *address, nullptr, plan);
}

int run(std::vector<std::string> arguments) {
  Plan plan;
  if (arguments.size() > 2 && arguments[arguments.size() - 2] == "--sizes") {
    plan.sizes.clear();
    const std::string list = arguments.back();
    for (size_t at = 0; at < list.size();) {
      size_t used = 0;
      plan.sizes.push_back(std::stoull(list.substr(at), &used));
      at += used + 1;
    }
    arguments.resize(arguments.size() - 2);
  }
  if (arguments.size() == 2 &&
      (arguments[0] == "shared" || arguments[0] == "ring")) {
    return run_forked(std::stoi(arguments[1]), arguments[0] == "ring", plan);
  }
  if (arguments.size() == 5 && arguments[0] == "rank") {
    return run_one(
        std::stoi(arguments[1]),
        std::stoi(arguments[2]),
        arguments[3],
        arguments[4],
        plan);
  }
  fmt::print(
      stderr,
      "usage: collective_bench shared|ring RANKS | rank R RANKS ADDRESS OWN "
      "[--sizes A,B]\n");
  return 2;
}

}  // namespace
}  // namespace lockstep::collective

int main(int argc, char** argv) {
  try {
    return lockstep::collective::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
