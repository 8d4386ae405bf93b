#pragma once

// Times as servers write them. Internal to fetch; pure.

#include <optional>
#include <string>

namespace lockstep::fetch {

// "Sun, 15 Nov 2026 14:45:24 GMT": Unix seconds.
std::optional<int64_t> parse_http_date(const std::string& text);

// "2026-11-15T14:45:24Z", also with a fraction: Unix seconds.
std::optional<int64_t> parse_iso_date(const std::string& text);

}  // namespace lockstep::fetch
