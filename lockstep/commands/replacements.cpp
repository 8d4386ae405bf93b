#include "lockstep/commands/replacements.h"

#include <fmt/format.h>

#include <map>

#include "lockstep/base/log.h"
#include "lockstep/os/clock.h"
#include "lockstep/record/event_log.h"

namespace lockstep::commands {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(500);
// A node that was lost and whose machine still lives may come back by itself.
constexpr Duration kComesBack = std::chrono::minutes(2);

}  // namespace

struct Replacements::Missing {
  Absence absence;
  bool is_rented = false;  // another machine is there, and has not joined
  os::Instant since;
};

Replacements::Replacements(
    const record::RunDirectory& run,
    std::set<std::string> nodes,
    ReplacementSteps steps)
    : run_(run), nodes_(std::move(nodes)), steps_(std::move(steps)) {
  if (!nodes_.empty() && steps_.rent && steps_.join) {
    thread_ = std::jthread(
        [this](const std::stop_token& stopped) { follow(stopped); });
  }
}

Replacements::~Replacements() {
  thread_.request_stop();
  if (steps_.stop) {
    steps_.stop();
  }
}

bool Replacements::replace(const std::string& node, Missing& missing) {
  const auto rented = missing.is_rented ? Result<bool>(true)
                                        : steps_.rent(node, missing.absence);
  missing.is_rented = rented && *rented;
  if (!missing.is_rented) {
    if (!rented && rented.error().code() != ErrorCode::kInterrupted) {
      log_warning(
          fmt::format(
              "no machine yet in place of {}: {}",
              node,
              rented.error().to_string()));
    }
    return false;
  }
  if (const auto joined = steps_.join(node); !joined) {
    log_warning(
        fmt::format(
            "{} does not take part yet: {}", node, joined.error().to_string()));
    return false;
  }
  log_info(fmt::format("{} has a new machine", node));
  return true;
}

void Replacements::follow(const std::stop_token& stopped) {
  std::map<std::string, Missing> missing;
  record::EventReader reader(run_.events());
  while (!stopped.stop_requested()) {
    (void)reader
        .poll([&](const wire::Event& event, const auto&) {
          const auto* node = std::get_if<wire::Node>(&event.body);
          if (node == nullptr || !nodes_.contains(event.node)) {
            return;
          }
          if (node->state == "leaving" || node->state == "lost") {
            Missing& one = missing[event.node];
            one.is_rented = false;
            one.absence.is_leaving |= node->state == "leaving";
            // A machine that takes leave is lost a little later.
            one.absence.since =
                one.absence.since > 0 ? one.absence.since : event.time;
            one.since = os::real_clock().now();
          } else if (node->state == "up") {
            missing.erase(event.node);
          }
        })
        .has_value();
    for (auto one = missing.begin(); one != missing.end();) {
      const bool is_over =
          !one->second.absence.is_leaving &&
          os::real_clock().now() - one->second.since > kComesBack;
      const bool is_done = is_over || (!stopped.stop_requested() &&
                                       replace(one->first, one->second));
      one = is_done ? missing.erase(one) : std::next(one);
    }
    os::real_clock().sleep_for(kLook);
  }
}

}  // namespace lockstep::commands
