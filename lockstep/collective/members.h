#pragma once

// Who is in the group and where: every rank publishes a few facts through the
// rendezvous and reads those of all others. Throws CollectiveError that names
// the ranks which did not come before the deadline.

#include <bitset>
#include <string>
#include <vector>

#include "lockstep/collective/factory.h"

namespace lockstep::collective {

struct Member {
  std::string host;    // equal on ranks that share one
  std::string socket;  // abstract Unix socket on which it is reached there
  std::bitset<1024> processors;  // that it may use
  int cores = 1;                 // of those, after cgroup quotas
};

// The facts of this process; `identity` replaces the host's name if not empty.
Member describe_member(const std::string& identity, const std::string& socket);

// Publishes `value` under `name` and returns everybody's, by rank; of `ranks`
// only, when given (others are empty).
std::vector<std::string> exchange(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous,
    const std::string& name,
    const std::string& value,
    os::Deadline deadline,
    const std::vector<int>& ranks = {});

std::string encode(const Member& member);
Member decode_member(const std::string& text);

// The group cut into hosts, ordered by their lowest rank, which leads.
struct Layout {
  std::vector<std::vector<int>> hosts;  // ranks, ascending
  std::vector<int> host_of;             // by rank
  std::vector<int> index_of;            // by rank, within its host
};
Layout make_layout(const std::vector<Member>& members);

// The address on which other hosts reach this one: of the interface that
// GLOO_SOCKET_IFNAME names, else of the one that reaches the coordinator or
// the master, else of the first that is up and is not loopback.
std::string find_own_address();

}  // namespace lockstep::collective
