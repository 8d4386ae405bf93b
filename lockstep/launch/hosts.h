#pragma once

// Which hosts a run uses and how many ranks each takes: `--hosts a,b:4`,
// `-H a:1,b:1`, a hostfile of "host slots=N" lines, or the job's list. Errors
// name the line. Pure.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"

namespace lockstep::launch {

struct HostSlots {
  std::string host;  // as ssh takes it: name, alias, user@name, address
  std::optional<int> slots;
};

// "a,b:4,user@c,[fe80::1]:2". A host twice is an error. `place`: where it was
// written, which errors begin with.
Result<std::vector<HostSlots>> parse_hosts(
    std::string_view text,
    const std::string& place = "--hosts");
// '#' comments, blank lines, "host", "host slots=4", "host:4".
Result<std::vector<HostSlots>> parse_hostfile(
    std::string_view text,
    const std::string& file);

// The ranks of each of the first `nodes` hosts (0: all). `procs` (0: not
// given) over slots (not given: `by_facts`, one entry a host). More ranks than
// slots is an error that says both numbers.
Result<std::vector<int>> ranks_by_host(
    const std::vector<HostSlots>& hosts,
    int nodes,
    int procs,
    const std::vector<int>& by_facts);

}  // namespace lockstep::launch
