#pragma once

// What a listener refused, as lines for the log that a flood cannot fill: the
// first of each kind at once, with its address; more of the same kind as a
// count, at most every ten seconds, the rest at the end. One thread.

#include <map>
#include <string>

#include "lockstep/os/clock.h"

namespace lockstep::launch {

class Refusals {
 public:
  explicit Refusals(const os::Clock& clock) : clock_(clock) {}
  ~Refusals();
  Refusals(const Refusals&) = delete;
  Refusals& operator=(const Refusals&) = delete;

  // `why` may begin with the address; the rest of it is the kind.
  void take(const std::string& address, std::string why);
  // Tells counts that are due. Call it some times a second.
  void look();
  size_t count() const { return count_; }

 private:
  struct Kind {
    os::Instant told;
    size_t untold = 0;
    std::string last;  // address
  };
  static void tell(const std::string& why, Kind& kind);

  const os::Clock& clock_;
  std::map<std::string, Kind> kinds_;  // by why
  size_t count_ = 0;
};

}  // namespace lockstep::launch
