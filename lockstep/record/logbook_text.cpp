#include "lockstep/record/logbook_text.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "lockstep/base/units.h"

namespace lockstep::record {

std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("|<*_`[\\").find(c) != std::string_view::npos) {
      out += '\\';
    }
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

std::string code_block(std::string_view text, std::string_view language) {
  std::string fence = "```";
  while (text.find(fence) != std::string_view::npos) {
    fence += '`';
  }
  return fmt::format("{}{}\n{}\n{}\n", fence, language, text, fence);
}

bool is_time(double unix_seconds) {
  return std::abs(unix_seconds) < 1e11;
}

std::string when(double unix_seconds) {
  if (!is_time(unix_seconds) || unix_seconds == 0) {
    return "unknown";
  }
  return fmt::format(
      "{:%Y-%m-%d %H:%M:%S} UTC",
      fmt::gmtime(static_cast<std::time_t>(unix_seconds)));
}

std::string length(double seconds) {
  return format_duration(from_seconds(std::clamp(seconds, 0.0, 9e9)));
}

std::string grouped(int64_t value) {
  const std::string digits = fmt::format("{}", value);
  const size_t sign = value < 0 ? 1 : 0;
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > sign && (digits.size() - i) % 3 == 0) {
      text += ',';
    }
    text += digits[i];
  }
  return text;
}

std::string number(double value) {
  return std::abs(value) >= 1e4 && std::abs(value) < 1e15
             ? grouped(std::llround(value))
             : fmt::format("{:.4g}", value);
}

std::string bytes(double count) {
  return count > 0
             ? format_bytes(Bytes{static_cast<uint64_t>(std::min(count, 1e18))})
             : "-";
}

std::string plural(int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", grouped(count), what, count == 1 ? "" : "s");
}

}  // namespace lockstep::record
