#pragma once

// The value of `--ports`: "4000-4100", or one port.

#include <optional>
#include <string>

#include "lockstep/base/result.h"

namespace lockstep::commands {

struct PortRange {
  int first = 0;  // 0: any free one
  int last = 0;
};
// Where none was given: any.
Result<PortRange> parse_port_range(const std::optional<std::string>& given);

}  // namespace lockstep::commands
