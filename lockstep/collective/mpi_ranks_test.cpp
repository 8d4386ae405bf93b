// The mpi backend, run by mpirun as N ranks: each checks every operation
// against what it must give, then a deadline and an abort. Exits with 1 and a
// line on stderr when something is wrong.

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "lockstep/collective/factory.h"
#include "lockstep/collective/mpi.h"

namespace lockstep::collective {
namespace {

int failures = 0;

void expect(bool condition, const std::string& what) {
  if (!condition) {
    ++failures;
    fmt::print(stderr, "wrong: {}\n", what);
  }
}

template <class T>
void check_type(Communicator& c, DataType type) {
  const auto size = static_cast<size_t>(c.size());
  const auto rank = static_cast<size_t>(c.rank());
  for (const size_t count : {0, 1, 7, 1023, 65537}) {
    std::vector<T> data(count, static_cast<T>(rank + 1));
    c.all_reduce(data.data(), count, type, ReduceOp::kSum);
    expect(
        data == std::vector<T>(count, static_cast<T>(size * (size + 1) / 2)),
        fmt::format("sum of {}", count));
    data.assign(count, static_cast<T>(rank + 1));
    c.all_reduce(data.data(), count, type, ReduceOp::kMax);
    expect(data == std::vector<T>(count, static_cast<T>(size)), "max");
    data.assign(count, static_cast<T>(rank + 1));
    c.broadcast(data.data(), count, type, c.size() - 1);
    expect(data == std::vector<T>(count, static_cast<T>(size)), "broadcast");
    std::vector<T> blocks(count * size, T{});
    std::fill_n(
        blocks.begin() + static_cast<ptrdiff_t>(rank * count),
        count,
        static_cast<T>(rank + 3));
    c.all_gather(blocks.data(), count, type);
    for (size_t i = 0; i < blocks.size(); ++i) {
      expect(blocks[i] == static_cast<T>(i / count + 3), "all_gather");
    }
    c.reduce_scatter(blocks.data(), count, type, ReduceOp::kSum);
    for (size_t i = rank * count; i < (rank + 1) * count; ++i) {
      expect(blocks[i] == static_cast<T>((rank + 3) * size), "reduce_scatter");
    }
  }
}

void check_halves(Communicator& c) {
  std::vector<uint16_t> data(1000, 0x3f80);  // 1
  c.all_reduce(data.data(), data.size(), DataType::kBFloat16, ReduceOp::kSum);
  const uint16_t expected = c.size() == 2 ? 0x4000 : 0x4040;  // 2, 3
  expect(c.size() > 3 || data[999] == expected, "sum of bf16");
}

void check_asynchronous(Communicator& c) {
  std::vector<std::vector<int64_t>> data(10, std::vector<int64_t>(5000, 1));
  std::vector<Work> works;
  for (auto& one : data) {
    works.push_back(c.all_reduce_async(
        one.data(), one.size(), DataType::kInt64, ReduceOp::kSum));
  }
  for (size_t i = works.size(); i-- > 0;) {
    const Timing timing = works[i].wait();
    expect(timing.wait >= 0 && timing.busy >= 0, "timing");
    expect(data[i][4999] == c.size(), "asynchronous sum");
  }
}

void check_failures(const GroupOptions& options, wire::Rendezvous& rendezvous) {
  GroupOptions impatient = options;
  impatient.timeout = std::chrono::milliseconds(300);
  {
    auto c = make_mpi_communicator(impatient);
    c->barrier();
    std::vector<float> data(9);
    if (c->rank() == 1) {
      // Stays away until the others have given up.
      for (int peer = 0; peer < c->size(); ++peer) {
        const bool heard =
            peer == 1 || rendezvous
                             .get(
                                 fmt::format("gave up/{}", peer),
                                 os::Deadline::after(options.timeout))
                             .has_value();
        expect(heard, fmt::format("rank {} did not give up", peer));
      }
    } else {
      try {
        c->all_reduce(data.data(), 9, DataType::kFloat32, ReduceOp::kSum);
        expect(false, "the deadline passed without an error");
      } catch (const CollectiveError& error) {
        expect(error.ranks() == std::vector<int>{1}, error.what());
        expect(
            std::strstr(error.what(), "all_reduce of 9 float32") != nullptr,
            error.what());
      }
      expect(c->failed(), "a group that failed is dead");
      expect(
          rendezvous.put(fmt::format("gave up/{}", c->rank()), "").has_value(),
          "telling that the deadline passed");
    }
  }
  auto c = make_mpi_communicator(options);
  try {
    // Rank 0 may leave the first one, and abort, while others are still in it.
    c->barrier();
    if (c->rank() == 0) {
      c->abort("enough");
    }
    c->barrier();
    expect(false, "no error after an abort");
  } catch (const CollectiveError& error) {
    expect(std::string(error.what()) == "enough", error.what());
  }
}

int run() {
  auto rendezvous = make_mpi_rendezvous();
  GroupOptions options;
  options.rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
  options.world_size = std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE"));
  options.kind = "mpi";
  options.timeout = std::chrono::seconds(30);
  auto c = make_communicator(options, *rendezvous);
  expect(c->name() == "mpi", "name");
  check_type<float>(*c, DataType::kFloat32);
  check_type<double>(*c, DataType::kFloat64);
  check_type<int32_t>(*c, DataType::kInt32);
  check_type<int64_t>(*c, DataType::kInt64);
  check_type<uint8_t>(*c, DataType::kUint8);
  check_halves(*c);
  check_asynchronous(*c);
  c->barrier();
  // All ranks are on this machine, so auto means shared memory, found through
  // MPI.
  options.kind = "auto";
  auto host = make_communicator(options, *rendezvous);
  expect(host->name() == "host", "auto on one host");
  int64_t one = 1;
  host->all_reduce(&one, 1, DataType::kInt64, ReduceOp::kSum);
  expect(one == host->size(), "host over an MPI rendezvous");
  options.kind = "mpi";
  check_failures(options, *rendezvous);
  return failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace lockstep::collective

int main() {
  try {
    return lockstep::collective::run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
