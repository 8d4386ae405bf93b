#pragma once

// Rents a machine in the place of one that the cloud took away, within the
// budget and the duration that the first ones were rented under. The same on
// the user's machine and on the head (renter.h). Thread-safe: it guards the
// fleet, which nobody else may use while it lives but through it.

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/commands/replacements.h"
#include "lockstep/commands/spot_policy.h"
#include "lockstep/fleet/fleet.h"
#include "lockstep/os/clock.h"

namespace lockstep::commands {

struct SpotRenterOptions {
  fleet::Cluster cluster;
  fleet::Plan plan;
  cloud::Provider* provider = nullptr;  // neither is owned
  fleet::Fleet* machines = nullptr;
  double since = 0;  // Unix seconds: from when the machines cost
};

class SpotRenter {
 public:
  explicit SpotRenter(SpotRenterOptions options);

  // Where that node's machine is, or was.
  void note(const std::string& node, TakenPlace place);
  // ReplacementSteps::rent. A machine that was launched since the node is
  // absent, by whom ever, is the one that was wanted.
  Result<bool> rent(const std::string& node, const Absence& absence);
  // Whether the cloud says that the machine of that node has ended. Never waits
  // for a machine that is on its way: then false.
  bool has_ended(const std::string& node);

 private:
  Result<void> keep_to_the_end(fleet::Plan& plan);

  SpotRenterOptions options_;
  std::mutex mutex_;
  std::map<std::string, std::optional<os::Instant>> missing_;  // since when
  std::map<std::string, TakenPlace> places_;
};

}  // namespace lockstep::commands
