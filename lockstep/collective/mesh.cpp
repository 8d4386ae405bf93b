#include "lockstep/collective/mesh.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "lockstep/base/log.h"
#include "lockstep/collective/communicator.h"
#include "lockstep/collective/operation.h"
#include "lockstep/wire/frame.h"
#include "lockstep/wire/handshake.h"

namespace lockstep::collective {
namespace {

// A stranger that connects and says nothing holds the others up this long.
constexpr Duration kGreeting = std::chrono::seconds(2);
constexpr size_t kMaxHello = 64;

[[noreturn]] void fail(int rank, const Error& error) {
  throw CollectiveError(
      fmt::format("connecting to rank {}: {}", rank, error.to_string()),
      {rank});
}

std::unique_ptr<os::Connection>
call(const MeshOptions& options, int rank, int channel) {
  auto connection =
      os::real_network().connect(options.addresses.at(rank), options.deadline);
  if (!connection) {
    fail(rank, connection.error());
  }
  if (auto met = wire::greet_as_client(
          **connection, options.key, options.purpose, options.deadline);
      !met) {
    fail(rank, met.error());
  }
  if (auto sent = wire::write_frame(
          **connection,
          fmt::format("{} {}", options.rank, channel),
          options.deadline);
      !sent) {
    fail(rank, sent.error());
  }
  return std::move(*connection);
}

struct Caller {
  int rank = -1;
  int channel = -1;
  std::unique_ptr<os::Connection> connection;
};

Result<Caller> greet(
    const MeshOptions& options,
    std::unique_ptr<os::Connection> connection) {
  const os::Deadline soon = os::Deadline::after(
      std::min<Duration>(options.deadline.left(), kGreeting));
  LOCKSTEP_TRY(
      wire::greet_as_server(*connection, options.key, options.purpose, soon));
  LOCKSTEP_ASSIGN(
      const std::string hello, wire::read_frame(*connection, soon, kMaxHello));
  Caller caller;
  if (std::sscanf(hello.c_str(), "%d %d", &caller.rank, &caller.channel) != 2 ||
      caller.rank <= options.rank || !options.addresses.contains(caller.rank) ||
      caller.channel < 0 || caller.channel >= options.channels) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("'{}' is not a rank of this group", hello));
  }
  caller.connection = std::move(connection);
  return caller;
}

}  // namespace

std::map<int, Channels> connect_mesh(const MeshOptions& options) {
  std::map<int, Channels> mesh;
  size_t expected = 0;
  for (const auto& [rank, address] : options.addresses) {
    if (rank == options.rank) {
      continue;
    }
    Channels& channels = mesh[rank];
    channels.resize(static_cast<size_t>(options.channels));
    if (rank > options.rank) {
      expected += channels.size();
      continue;
    }
    for (int i = 0; i < options.channels; ++i) {
      channels[static_cast<size_t>(i)] = call(options, rank, i);
    }
  }
  while (expected > 0) {
    auto accepted = options.listener->accept(options.deadline);
    if (!accepted) {
      std::vector<int> missing;
      for (const auto& [rank, channels] : mesh) {
        if (std::ranges::any_of(
                channels, [](const auto& c) { return c == nullptr; })) {
          missing.push_back(rank);
        }
      }
      throw CollectiveError(
          fmt::format(
              "no connection from {}: {}",
              name_ranks(missing),
              accepted.error().to_string()),
          missing);
    }
    auto caller = greet(options, std::move(*accepted));
    if (!caller) {
      log_warning(
          "refused a connection to the group: " + caller.error().to_string());
      continue;
    }
    auto& place = mesh[caller->rank][static_cast<size_t>(caller->channel)];
    if (place == nullptr) {
      place = std::move(caller->connection);
      --expected;
    }
  }
  return mesh;
}

}  // namespace lockstep::collective
