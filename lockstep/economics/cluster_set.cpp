#include "lockstep/economics/cluster_set.h"

#include <algorithm>
#include <cmath>

namespace lockstep::economics {
namespace {

constexpr double kSecondsPerHour = 3600;

double ring_share(double nodes) {
  return nodes > 1 ? 2 * (nodes - 1) / nodes : 0;
}

}  // namespace

ClusterSet make_set(
    std::vector<Member> members,
    std::span<const CatalogueEntry> catalogue,
    const OptimiseOptions& options,
    double communication,
    int measured) {
  ClusterSet set;
  double slowest = 0;
  double speeds = 0;
  for (const Member& member : members) {
    slowest = std::max(slowest, member.compute);
    speeds += 1 / member.compute;
    set.dollars_per_hour += catalogue[member.kind].dollars_per_hour;
    set.spread = std::max(set.spread, member.spread);
  }
  const auto nodes = static_cast<double>(members.size());
  const double batch = options.batch > 0 ? static_cast<double>(options.batch)
                                         : options.samples_a_node * nodes;
  const double compute =
      options.balanced ? batch / speeds : batch / nodes * slowest;
  const double exposed =
      measured > 1 ? communication * ring_share(nodes) / ring_share(measured)
                   : 0;
  set.samples_per_second = batch / (compute + exposed);
  set.members = std::move(members);
  return set;
}

double rest_seconds(const ClusterSet& set, double samples) {
  return samples / set.samples_per_second;
}

double rest_dollars(const ClusterSet& set, double samples) {
  return rest_seconds(set, samples) * set.dollars_per_hour / kSecondsPerHour;
}

double change_dollars(
    const ClusterSet& from,
    const ClusterSet& to,
    std::span<const CatalogueEntry> catalogue,
    double pause) {
  double dollars = pause * std::max(from.dollars_per_hour, to.dollars_per_hour);
  for (const Member& member : to.members) {
    if (member.name.empty()) {
      const CatalogueEntry& kind = catalogue[member.kind];
      dollars += kind.ready * kind.dollars_per_hour;
    }
  }
  return dollars / kSecondsPerHour;
}

}  // namespace lockstep::economics
