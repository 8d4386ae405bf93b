#include "lockstep/collective/factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/collective/host_group.h"
#include "lockstep/collective/mpi.h"
#include "lockstep/collective/nccl.h"

namespace lockstep::collective {
namespace {

int number_from(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

// An MPI launcher says how many of its ranks share this host.
bool mpi_started_us_over_hosts(int world_size) {
  const int size = number_from("OMPI_COMM_WORLD_SIZE", 0);
  const int local = number_from("OMPI_COMM_WORLD_LOCAL_SIZE", size);
  return size == world_size && local < size;
}

std::string choose_kind(const GroupOptions& options) {
  if (num_nccl_devices() > 0) {
    return "nccl";
  }
  if (has_mpi() && mpi_started_us_over_hosts(options.world_size)) {
    return "mpi";
  }
  return "host";
}

}  // namespace

std::vector<std::string> available_kinds() {
  std::vector<std::string> kinds = {"host"};
  if (has_mpi()) {
    kinds.push_back("mpi");
  }
  if (has_nccl()) {
    kinds.push_back("nccl");
  }
  return kinds;
}

std::unique_ptr<Communicator> make_communicator(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous) {
  if (options.world_size < 1 || options.rank < 0 ||
      options.rank >= options.world_size) {
    throw CollectiveError(
        fmt::format(
            "rank {} of {} is not possible", options.rank, options.world_size));
  }
  const std::string kind =
      options.kind == "auto" ? choose_kind(options) : options.kind;
  std::vector<std::string> kinds = available_kinds();
  if (std::ranges::find(kinds, kind) == kinds.end()) {
    kinds.insert(kinds.begin(), "auto");
    const bool known = kind == "mpi" || kind == "nccl";
    throw CollectiveError(
        fmt::format(
            "collective '{}' is {}; accepted: {}",
            kind,
            known ? "not in this build" : "unknown",
            fmt::join(kinds, ", ")));
  }
  if (kind == "nccl") {
    return make_nccl_communicator(options, rendezvous);
  }
  if (kind == "mpi") {
    return make_mpi_communicator(options);
  }
  if (options.world_size == 1) {
    return make_single();
  }
  return make_host_communicator(options, rendezvous);
}

}  // namespace lockstep::collective
