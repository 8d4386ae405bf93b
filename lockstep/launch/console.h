#pragma once

// Where a supervisor says what a person should read. Progress shows it on a
// terminal; a head writes it to console.jsonl, which a follower shows.

#include <optional>
#include <string>

#include "lockstep/base/units.h"
#include "lockstep/launch/live.h"

namespace lockstep::launch {

class Console {
 public:
  virtual ~Console() = default;
  // A line that a rank printed.
  virtual void output(int rank, const std::string& line) = 0;
  // A line of lockstep's own.
  virtual void say(const std::string& text) = 0;
  // One that is shown even when all else is quiet.
  virtual void alarm(const std::string& text) = 0;
  // Call often; it decides when to draw.
  virtual void update(
      const LiveState& live,
      int world_size,
      Duration elapsed,
      std::optional<Money> cost) = 0;
  // Bytes of output that it takes now.
  virtual size_t room() const = 0;
  // Until there is room; false when nobody reads.
  virtual bool wait_for_room() = 0;
};

}  // namespace lockstep::launch
