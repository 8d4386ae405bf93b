#pragma once

// Connects each of some ranks with each other: a rank connects to the lower
// ones and accepts the higher ones. Both ends prove that they hold the run's
// key; a stranger is refused and passed over. Throws CollectiveError that
// names the ranks which are not connected when the deadline passes.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/id.h"
#include "lockstep/os/socket.h"

namespace lockstep::collective {

struct MeshOptions {
  int rank = 0;
  std::map<int, os::Address> addresses;  // of all, by rank
  os::Listener* listener = nullptr;
  Key key{};
  std::string purpose;
  int channels = 1;  // connections with each other rank
  os::Deadline deadline = os::Deadline::never();
};

using Channels = std::vector<std::unique_ptr<os::Connection>>;

std::map<int, Channels> connect_mesh(const MeshOptions& options);

}  // namespace lockstep::collective
