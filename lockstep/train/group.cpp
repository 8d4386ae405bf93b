#include "lockstep/train/group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <stdexcept>

#include "lockstep/collective/factory.h"
#include "lockstep/parallel/torch_store.h"
#include "lockstep/train/error.h"
#include "lockstep/wire/handshake.h"

namespace lockstep::train {
namespace {

// For the other ranks to read what made this one give up.
constexpr Duration kLeaveTime = std::chrono::seconds(5);

// `exit_code`: kBadInput for what was told wrongly, kLost for who is not there.
template <class T>
T value_or_throw(Result<T> result, const std::string& what, int exit_code) {
  if (!result) {
    throw TrainError(exit_code, what + ": " + result.error().to_string());
  }
  return std::move(*result);
}

// With a launcher that gives no key, the run's id stands in: it keeps two runs
// apart, not a stranger out (docs/collectives.md).
Key run_key(const RankEnvironment& environment) {
  if (!environment.key_file.empty()) {
    return value_or_throw(
        wire::read_key_file(environment.key_file), "the run's key", kBadInput);
  }
  Key key{};
  uint64_t hash = 1469598103934665603u;
  for (size_t i = 0; i < key.size(); ++i) {
    for (const char c : environment.run_id) {
      hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211u;
    }
    key[i] = static_cast<uint8_t>((hash = hash * 1099511628211u + i) >> 32);
  }
  return key;
}

void check_kind(
    const std::string& kind,
    const RankEnvironment& environment,
    c10::Device device) {
  auto kinds = collective::available_kinds();
  kinds.insert(kinds.begin(), "auto");
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "trainer.collective={} is not in this build; accepted: {}",
            kind,
            fmt::join(kinds, ", ")));
  }
  if (kind == "mpi" && environment.launcher != "mpirun") {
    throw TrainError(
        kBadInput,
        fmt::format(
            "trainer.collective=mpi needs mpirun, but the launcher is '{}'",
            environment.launcher));
  }
  if (kind == "nccl" && !device.is_cuda()) {
    throw TrainError(
        kBadInput,
        fmt::format(
            "trainer.collective=nccl needs GPUs, but the device is {}; "
            "accepted here: auto, host",
            device.str()));
  }
}

}  // namespace

Group::Group(
    const RankEnvironment& environment,
    const std::string& kind,
    Duration timeout,
    c10::Device device) {
  check_kind(kind, environment, device);
  const bool alone = environment.world_size == 1;
  if (alone && kind != "mpi" && kind != "nccl") {
    communicator_ = collective::make_single();
    return;
  }
  collective::GroupOptions options;
  options.rank = environment.rank;
  options.world_size = environment.world_size;
  options.kind = kind;
  options.device = device.is_cuda() ? device.index() : -1;
  options.group =
      fmt::format("{}/{}", environment.run_id, environment.generation);
  options.timeout = timeout;
  if (alone && kind == "nccl") {  // nobody to look for
    communicator_ =
        collective::make_communicator(options, *wire::make_local_rendezvous());
    return;
  }
  const Key key = run_key(environment);
  auto& network = os::real_network();
  const auto deadline = os::Deadline::after(timeout);
  if (!environment.coordinator.empty()) {
    const auto address = value_or_throw(
        os::parse_address(environment.coordinator),
        "LOCKSTEP_COORDINATOR",
        kBadInput);
    rendezvous_ = value_or_throw(
        wire::connect_rendezvous(network, address, key, deadline),
        "coordinator " + environment.coordinator,
        kLost);
  } else if (environment.launcher == "mpirun") {
    rendezvous_ = collective::make_mpi_rendezvous();
  } else if (environment.agent_store) {
    rendezvous_ = parallel::connect_torch_store(
        environment.master_host,
        environment.master_port,
        fmt::format("lockstep/{}/", environment.generation),
        timeout);
  } else {
    const os::Address address{
        environment.master_host, environment.master_port, ""};
    if (environment.rank == 0) {
      // Where srun names a node, the node itself may know another address by
      // its name (Debian's 127.0.1.1): there it listens on all of them.
      auto listening = address;
      if (environment.launcher == "srun" && address.host != "127.0.0.1") {
        listening.host.clear();
      }
      auto server = wire::RendezvousServer::start(network, listening, key);
      if (!server) {
        throw TrainError(
            kBadInput,
            fmt::format(
                "rank 0 cannot open MASTER_ADDR:MASTER_PORT {}: {}; choose "
                "another MASTER_PORT",
                address.to_string(),
                server.error().to_string()));
      }
      server_ = std::move(*server);
    }
    rendezvous_ = value_or_throw(
        wire::connect_rendezvous(network, address, key, deadline),
        "rank 0 at " + address.to_string(),
        kLost);
  }
  options.key = key;
  try {
    communicator_ = collective::make_communicator(options, *rendezvous_);
  } catch (...) {
    // The others may be about to come to the same conclusion, and say it.
    rendezvous_.reset();
    if (server_ != nullptr) {
      server_->drain(os::Deadline::after(kLeaveTime));
    }
    throw;
  }
}

std::string broadcast_text(
    const std::string& text,
    collective::Communicator& group) {
  auto size = static_cast<int64_t>(text.size());
  group.broadcast(&size, 1, collective::DataType::kInt64, 0);
  std::string result = text;
  result.resize(static_cast<size_t>(size));
  group.broadcast(
      result.data(), result.size(), collective::DataType::kUint8, 0);
  return result;
}

}  // namespace lockstep::train
