#pragma once

// One acquire under way. Internal to fleet.

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/fleet/fleet.h"

namespace lockstep::fleet {

struct Fleet::Work {
  Cluster cluster;
  Plan plan;
  std::string id;  // of this life of the cluster; tokens begin with it
  double end = 0;  // of all machines, Unix seconds; 0: none
  std::string key_pair, security_group;

  struct Slot {
    std::string name;
    size_t group = 0;
    std::optional<Node> node;
    bool was_there = false;
    bool ready = false;
    std::optional<Error> failed;
    int retries = 0;  // after machines that ended before they answered
    size_t next_place = 0;
  };
  std::vector<Slot> slots;         // as Cluster::wanted()
  std::mutex mutex;                // of what threads write in slots
  std::set<std::string> launched;  // ids, by this acquire
  bool is_adopted = false;         // it is known what was there before

  // How many of a group are not lost.
  int alive(size_t group) const {
    int number = 0;
    for (const Slot& slot : slots) {
      number += slot.group == group && slot.node && !slot.failed ? 1 : 0;
    }
    return number;
  }
};

// While it lives, nodes that are ready do not go idle: others may take longer
// to boot or to be set up.
class StayAwake {
 public:
  StayAwake(const FleetOptions& options, Fleet::Work& work);
  ~StayAwake();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

// Runs action(i) for each of `count`, at most `most` at once.
void side_by_side(
    size_t count,
    size_t most,
    const std::function<void(size_t)>& action);

}  // namespace lockstep::fleet
