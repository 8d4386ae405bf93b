#include "lockstep/collective/factory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "lockstep/collective/host_group.h"
#include "lockstep/collective/members.h"
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

// Everybody's GPU, named so that equal names are one GPU; "-" where there is
// none. All ranks see the same list, so all draw the same conclusion from it.
std::vector<std::string> list_gpus(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous) {
  const std::string own = gpu_address(options.device);
  const std::string host = describe_member(options.host_identity, "").host;
  return exchange(
      options,
      rendezvous,
      "gpu",
      own.empty() ? "-" : host + "/" + own,
      os::Deadline::after(options.timeout));
}

// Why NCCL would refuse this group; empty when it would not.
std::string objection(const std::vector<std::string>& gpus) {
  std::map<std::string, int> owners;
  for (size_t i = 0; i < gpus.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (gpus[i] == "-") {
      return fmt::format("rank {} has no GPU", rank);
    }
    const auto [owner, fresh] = owners.emplace(gpus[i], rank);
    if (!fresh) {
      return fmt::format("ranks {} and {} share a GPU", owner->second, rank);
    }
  }
  return "";
}

std::string choose_kind(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous) {
  if (has_nccl() && options.world_size > 1 &&
      objection(list_gpus(options, rendezvous)).empty()) {
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
      options.kind == "auto" ? choose_kind(options, rendezvous) : options.kind;
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
    if (options.kind != "auto") {
      const std::string reason = objection(list_gpus(options, rendezvous));
      if (!reason.empty()) {
        throw CollectiveError(
            fmt::format(
                "collective 'nccl' needs a GPU of its own for each rank, but "
                "{}; 'host' and 'auto' do not",
                reason));
      }
    }
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
