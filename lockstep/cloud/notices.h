#pragma once

// What a rented machine is told about itself before it is taken away. Asked on
// that machine, every few seconds, by one thread.

#include <optional>
#include <string>

#include "lockstep/base/result.h"

namespace lockstep::cloud {

struct Notice {
  enum class Kind { kRebalance, kInterruption };
  Kind kind = Kind::kRebalance;
  double at = 0;       // Unix seconds: of the end, or of the hint
  std::string action;  // "terminate", "stop", "hibernate"
};

class Notices {
 public:
  virtual ~Notices() = default;
  // The gravest one that stands; none: all is well.
  virtual Result<std::optional<Notice>> look() = 0;
};

}  // namespace lockstep::cloud
