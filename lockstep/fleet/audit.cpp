#include "lockstep/fleet/audit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/cloud/failure.h"
#include "lockstep/fleet/node.h"

namespace lockstep::fleet {
namespace {

using cloud::Resource;
using cloud::ResourceKind;

constexpr Duration kPause = std::chrono::seconds(2);

double claimed_until(const Resource& one) {
  return std::atof(tag_of(one.tags, kUntilTag).c_str());
}

std::string time_text(double seconds) {
  return format_duration(from_seconds(std::max(0.0, seconds)));
}

}  // namespace

std::string_view to_string(Ownership ownership) {
  switch (ownership) {
    case Ownership::kTimer:
      return "its lease";
    case Ownership::kClaimed:
      return "its maker";
    case Ownership::kCluster:
      return "its cluster";
    case Ownership::kOver:
      return "over";
    case Ownership::kNobody:
      return "nobody";
  }
  return "nobody";
}

std::vector<Audited> judge(
    const std::vector<Resource>& resources,
    const AuditFacts& facts) {
  std::set<std::string> living;
  std::vector<Audited> all;
  for (const ResourceKind kind : cloud::kResourceKinds) {
    for (const Resource& one : resources) {
      if (one.kind != kind) {
        continue;
      }
      Audited audited;
      audited.resource = one;
      audited.cluster = tag_of(one.tags, cloud::kClusterTag);
      const bool is_abandoned = facts.abandoned.contains(audited.cluster);
      const double left = is_abandoned ? 0 : claimed_until(one) - facts.now;
      if (one.is_over) {
        audited.owner = Ownership::kOver;
        audited.why = one.state;
      } else if (
          kind == ResourceKind::kInstance &&
          tag_of(one.tags, kTimerTag) == "runs") {
        audited.owner = Ownership::kTimer;
        audited.why = "it ends itself when it is idle or its lease is over";
      } else if (left > 0) {
        audited.owner = Ownership::kClaimed;
        audited.why = "its maker claims it for " + time_text(left);
      } else if (living.contains(audited.cluster)) {
        audited.owner = Ownership::kCluster;
        audited.why = "machines of its cluster live";
      } else {
        audited.why =
            kind == ResourceKind::kInstance
                ? (is_abandoned ? "the command that made it has died"
                                : "nobody saw its timer run, and its maker's "
                                  "claim is over")
                : "no machine of its cluster lives";
      }
      if (kind == ResourceKind::kInstance &&
          (audited.owner == Ownership::kTimer ||
           audited.owner == Ownership::kClaimed)) {
        living.insert(audited.cluster);
      }
      all.push_back(std::move(audited));
    }
  }
  return all;
}

Result<std::vector<Resource>> all_of_ours(cloud::Provider& provider) {
  const cloud::Selection ours = {
      .tags = {{std::string(cloud::kClusterTag), ""}}, .ids = {}};
  std::vector<Resource> all;
  for (const ResourceKind kind : cloud::kResourceKinds) {
    LOCKSTEP_ASSIGN(auto found, provider.resources(kind, ours));
    std::ranges::move(found, std::back_inserter(all));
  }
  return all;
}

Ended end_unowned(
    cloud::Provider& provider,
    const std::vector<Audited>& audited,
    os::Clock& clock,
    Duration patience) {
  Ended result;
  const auto deadline = os::Deadline::after(patience, clock);
  std::vector<std::string> machines;
  for (const Audited& one : audited) {
    if (one.owner == Ownership::kNobody &&
        one.resource.kind == ResourceKind::kInstance) {
      machines.push_back(one.resource.id);
    }
  }
  // One by one: one that cannot be ended must not keep the others.
  std::vector<std::string> ending;
  for (const std::string& id : machines) {
    if (auto done = provider.terminate({id}); done) {
      ending.push_back(id);
      result.ended.push_back(id);
    } else {
      result.failed.push_back(std::move(done.error()).with_context(id));
    }
  }
  while (!ending.empty() && !deadline.passed(clock)) {
    const auto left = provider.instances({.tags = {}, .ids = ending});
    if (left && std::ranges::all_of(*left, [](const auto& one) {
          return one.state == cloud::InstanceState::kGone;
        })) {
      break;
    }
    clock.sleep_for(kPause);
  }
  for (const Audited& one : audited) {
    if (one.owner != Ownership::kNobody ||
        one.resource.kind == ResourceKind::kInstance) {
      continue;
    }
    auto removed = provider.remove(one.resource.kind, one.resource.id);
    while (!removed && removed.error().retry() && !deadline.passed(clock)) {
      clock.sleep_for(kPause);
      removed = provider.remove(one.resource.kind, one.resource.id);
    }
    if (removed) {
      result.ended.push_back(one.resource.id);
    } else {
      result.failed.push_back(
          std::move(removed.error()).with_context(one.resource.id));
    }
  }
  return result;
}

}  // namespace lockstep::fleet
