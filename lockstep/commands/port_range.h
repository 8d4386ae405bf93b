#pragma once

// The value of `--ports`: "4000-4100", or one port.

#include <string>

#include "lockstep/base/result.h"

namespace lockstep::commands {

struct PortRange {
  int first = 0;  // 0: any free one
  int last = 0;
};
// Of an empty text: any.
Result<PortRange> parse_port_range(const std::string& text);

}  // namespace lockstep::commands
