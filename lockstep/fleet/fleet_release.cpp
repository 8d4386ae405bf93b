// What a fleet gives back, and in what order.

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/log.h"
#include "lockstep/cloud/failure.h"
#include "lockstep/fleet/work.h"

namespace lockstep::fleet {
namespace {

using cloud::ResourceKind;
using nlohmann::json;

// How long a machine that was launched may be absent from the cloud's lists.
constexpr double kUnseenSeconds = 20;

}  // namespace

// Launches of which nobody knows how they went: their machines, if any.
Result<void> Fleet::finish_launches(std::vector<std::string>& ids) {
  for (const JournalStep& step : options_.journal->unfinished()) {
    if (step.step != "launch") {
      continue;
    }
    const cloud::Tags tags = step.order.value("tags", cloud::Tags());
    const std::string token = tag_of(tags, cloud::kTokenTag);
    json outcome = {{"over", true}};
    while (true) {
      LOCKSTEP_ASSIGN(
          const auto found,
          options_.provider->instances(
              {.tags = {{std::string(cloud::kTokenTag), token}}, .ids = {}}));
      for (const cloud::Instance& one : found) {
        ids.push_back(one.id);
        outcome = {{"id", one.id}, {"launched", one.launched}};
      }
      const double age = options_.clock->unix_seconds() - step.time;
      if (!found.empty() || age > kUnseenSeconds) {
        break;
      }
      options_.clock->sleep_for(options_.pause);
    }
    LOCKSTEP_TRY(options_.journal->done(step.number, outcome));
  }
  return {};
}

Result<void> Fleet::end_machines(const std::vector<std::string>& ids) {
  if (ids.empty()) {
    return {};
  }
  LOCKSTEP_ASSIGN(
      const int step,
      options_.journal->begin("terminate", options_.cluster, ids));
  LOCKSTEP_TRY(options_.provider->terminate(ids));
  LOCKSTEP_TRY(options_.journal->done(step));
  for (const std::string& id : ids) {
    LOCKSTEP_TRY(options_.journal->note("ended", id, {{"at", cloud_time()}}));
  }
  return {};
}

Result<void> Fleet::wait_gone(const std::vector<std::string>& ids) {
  if (ids.empty()) {
    return {};
  }
  const auto deadline = os::Deadline::after(options_.patience, *options_.clock);
  while (true) {
    LOCKSTEP_ASSIGN(
        const auto left,
        options_.provider->instances({.tags = {}, .ids = ids}));
    const auto live = std::ranges::find_if(left, [](const auto& one) {
      return one.state != cloud::InstanceState::kGone;
    });
    if (live == left.end()) {
      return {};
    }
    if (deadline.passed(*options_.clock)) {
      return Error(
                 ErrorCode::kUnavailable,
                 fmt::format(
                     "{} is {} after {}",
                     live->id,
                     to_string(live->state),
                     format_duration(options_.patience)))
          .with_fix("'lockstep audit' shows what is left");
    }
    options_.clock->sleep_for(options_.pause);
  }
}

Result<void> Fleet::release() {
  LOCKSTEP_ASSIGN(
      const int step, options_.journal->begin("down", options_.cluster, {}));
  std::vector<std::string> ids;
  LOCKSTEP_TRY(finish_launches(ids));
  LOCKSTEP_ASSIGN(
      const auto instances, options_.provider->instances(selection()));
  for (const cloud::Instance& one : instances) {
    if (one.state != cloud::InstanceState::kGone) {
      ids.push_back(one.id);
    }
  }
  std::ranges::sort(ids);
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  LOCKSTEP_TRY(end_machines(ids));
  LOCKSTEP_TRY(wait_gone(ids));
  for (const ResourceKind kind : cloud::kResourceKinds) {
    if (kind == ResourceKind::kInstance) {
      continue;
    }
    LOCKSTEP_ASSIGN(
        const auto found, options_.provider->resources(kind, selection()));
    for (const cloud::Resource& one : found) {
      if (one.is_over) {
        continue;
      }
      LOCKSTEP_ASSIGN(
          const int removal,
          options_.journal->begin(
              "remove", one.id, {{"kind", to_string(kind)}}));
      const auto deadline =
          os::Deadline::after(options_.patience, *options_.clock);
      auto removed = options_.provider->remove(kind, one.id);
      // A group is held by a machine for a while after its end.
      while (!removed && removed.error().retry() &&
             !deadline.passed(*options_.clock)) {
        options_.clock->sleep_for(options_.pause);
        removed = options_.provider->remove(kind, one.id);
      }
      if (!removed) {
        return Error(std::move(removed.error()))
            .with_context(
                fmt::format("removing the {} {}", to_string(kind), one.id));
      }
      LOCKSTEP_TRY(options_.journal->done(removal));
    }
  }
  return options_.journal->done(step);
}

// Gives back what this acquire made. The first error stays the one that is
// told; what cannot be undone now ends by its lease.
void Fleet::undo(Work& work) {
  const bool was_there = std::ranges::any_of(
      work.slots, [](const Work::Slot& slot) { return slot.was_there; });
  Result<void> undone;
  if (!work.is_adopted) {
    return;  // nothing was made yet, and what is there is not ours to end
  }
  if (!was_there) {
    undone = release();
  } else {
    std::vector<std::string> ids(work.launched.begin(), work.launched.end());
    undone = finish_launches(ids);
    if (undone) {
      undone = end_machines(ids);
    }
  }
  if (!undone) {
    log_error(
        fmt::format(
            "not everything could be given back: {}; machines end when their "
            "lease is over ({}), 'lockstep audit' shows them",
            undone.error().to_string(),
            format_duration(work.cluster.first_lease())));
  }
}

}  // namespace lockstep::fleet
