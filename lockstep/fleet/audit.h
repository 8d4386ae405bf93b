#pragma once

// Everything that carries our tag, and whether anything owns it. Decided from
// what the cloud says alone, so that it works on a machine that has never seen
// the clusters; journals of this machine add to it. Pure, but for look() and
// end(), which ask the provider.
//
// Owned is: an instance whose timer was seen running (it ends itself), anything
// whose maker still claims it (the tag kUntilTag is not over), and what belongs
// to a cluster with a living machine. Nobody owns: a machine that nobody ever
// saw the timer of and whose claim is over, and keys, groups, disks and
// requests of clusters without a machine. A cluster that this machine began and
// left half-way (its journal has unfinished steps and nobody works on it) is
// not claimed any more.

#include <set>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/cloud/provider.h"
#include "lockstep/os/clock.h"

namespace lockstep::fleet {

enum class Ownership {
  kTimer,    // it ends itself
  kClaimed,  // by its maker, for a while
  kCluster,  // machines live that need it
  kOver,     // it is on its way out
  kNobody,
};
// "its lease", "its maker", "its cluster", "over", "nobody".
std::string_view to_string(Ownership ownership);

struct Audited {
  cloud::Resource resource;
  std::string cluster;
  Ownership owner = Ownership::kNobody;
  std::string why;  // in words
};

struct AuditFacts {
  double now = 0;
  std::set<std::string> abandoned;  // clusters that were left half-way here
};

// In the order in which they are to be ended: instances, spot requests,
// volumes, key pairs, security groups.
std::vector<Audited> judge(
    const std::vector<cloud::Resource>& resources,
    const AuditFacts& facts);

// All of ours in the provider's region.
Result<std::vector<cloud::Resource>> all_of_ours(cloud::Provider& provider);

struct Ended {
  std::vector<std::string> ended;  // ids
  std::vector<Error> failed;       // each with its id
};
// Ends what nobody owns, and waits for machines to be gone before what they
// hold is removed. Goes on after a failure.
Ended end_unowned(
    cloud::Provider& provider,
    const std::vector<Audited>& audited,
    os::Clock& clock,
    Duration patience = std::chrono::minutes(5));

}  // namespace lockstep::fleet
