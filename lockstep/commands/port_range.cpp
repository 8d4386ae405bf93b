#include "lockstep/commands/port_range.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>

namespace lockstep::commands {

Result<PortRange> parse_port_range(const std::optional<std::string>& given) {
  PortRange range;
  if (!given) {
    return range;
  }
  const std::string& text = *given;
  const char* end = text.data() + text.size();
  auto read = std::from_chars(text.data(), end, range.first);
  range.last = range.first;
  if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-') {
    read = std::from_chars(read.ptr + 1, end, range.last);
  }
  if (read.ec != std::errc() || read.ptr != end || range.first < 1 ||
      range.last < range.first || range.last > UINT16_MAX) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "--ports: '{}' is not a range; accepted: FIRST-LAST, 1 to 65535",
            text));
  }
  return range;
}

}  // namespace lockstep::commands
