#include "lockstep/base/units.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "lockstep/base/text.h"

namespace lockstep {
namespace {

Error bad(std::string_view kind, std::string_view text, std::string_view form) {
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format("'{}' is not a {}; write it as {}", text, kind, form));
}

// Takes a decimal number without sign or exponent off the front.
bool take_number(std::string_view& text, double& value) {
  size_t length = 0;
  while (length < text.size() &&
         (std::isdigit((unsigned char)text[length]) || text[length] == '.')) {
    ++length;
  }
  auto [end, failure] =
      std::from_chars(text.data(), text.data() + length, value);
  if (failure != std::errc() || end != text.data() + length || length == 0) {
    return false;
  }
  text.remove_prefix(length);
  return true;
}

std::string take_word(std::string_view& text) {
  std::string word;
  while (!text.empty() && std::isalpha((unsigned char)text.front())) {
    word += static_cast<char>(std::tolower((unsigned char)text.front()));
    text.remove_prefix(1);
  }
  return word;
}

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::array kDurationUnits = {
    Unit{"ns", 1e-9},
    Unit{"us", 1e-6},
    Unit{"ms", 1e-3},
    Unit{"s", 1},
    Unit{"sec", 1},
    Unit{"m", 60},
    Unit{"min", 60},
    Unit{"h", 3600},
    Unit{"d", 86400},
    Unit{"w", 7 * 86400.0},
};

constexpr std::array kByteUnits = {
    Unit{"", 1},
    Unit{"b", 1},
    Unit{"k", 1e3},
    Unit{"kb", 1e3},
    Unit{"mb", 1e6},
    Unit{"gb", 1e9},
    Unit{"tb", 1e12},
    Unit{"kib", 1024.0},
    Unit{"mib", 1048576.0},
    Unit{"gib", 1073741824.0},
    Unit{"tib", 1099511627776.0},
    Unit{"pb", 1e15},
    Unit{"pib", 1125899906842624.0},
};

constexpr double kMaxBytes = 0x1p60;  // 1024 PiB

constexpr double kMaxSeconds = 9e9;
constexpr std::string_view kDurationForm = "90s, 1h30m, 250ms or 2d";
constexpr std::string_view kMoneyForm = "20 USD or $20";
constexpr std::string_view kBytesForm = "512MB, 64KiB or 2GiB";

// Nanoseconds and nano-dollars; int64_t ends a little above.
constexpr double kMost = 9.2e18;

// What is too much is the most there is; what is no number is nothing.
int64_t to_nanos(double value) {
  return std::isnan(value) ? 0 : std::llround(std::clamp(value, -kMost, kMost));
}

}  // namespace

Result<Duration> parse_duration(std::string_view text) {
  const std::string_view whole = text;
  text = trim(text);
  double seconds = 0;
  bool any = false;
  while (!text.empty()) {
    double value = 0;
    if (!take_number(text, value)) {
      return bad("duration", whole, kDurationForm);
    }
    text = trim(text);
    std::string word = take_word(text);
    text = trim(text);
    if (word.empty()) {
      if (any || !text.empty()) {
        return bad("duration", whole, kDurationForm);
      }
      word = "s";
    }
    bool known = false;
    for (const auto& unit : kDurationUnits) {
      if (unit.name == word) {
        seconds += value * unit.factor;
        known = true;
      }
    }
    if (!known) {
      return bad("duration", whole, kDurationForm);
    }
    any = true;
  }
  if (!any || seconds > kMaxSeconds) {
    return bad("duration", whole, kDurationForm);
  }
  return from_seconds(seconds);
}

std::string format_duration(Duration value) {
  if (value < Duration::zero()) {
    // The least has no opposite.
    return "-" + format_duration(-std::max(value, -Duration::max()));
  }
  const double seconds = to_seconds(value);
  if (seconds > 0.999 * kMost * 1e-9) {
    return "over 290 years";
  }
  if (seconds < 1e-3) {
    return fmt::format("{:.0f} us", seconds * 1e6);
  }
  if (seconds < 1) {
    return fmt::format("{:.0f} ms", seconds * 1e3);
  }
  if (seconds < 60) {
    return fmt::format("{:.1f} s", seconds);
  }
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) {
    return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  }
  if (whole < 86400) {
    return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  }
  return fmt::format("{}d {:02}h", whole / 86400, whole / 3600 % 24);
}

double to_seconds(Duration value) {
  return std::chrono::duration<double>(value).count();
}

Duration from_seconds(double seconds) {
  return Duration(to_nanos(seconds * 1e9));
}

Money Money::from_dollars(double dollars) {
  return Money(to_nanos(dollars * 1e9));
}

Money Money::operator+(Money other) const {
  int64_t sum = 0;
  if (__builtin_add_overflow(nanos_, other.nanos_, &sum)) {
    return Money(other.nanos_ > 0 ? INT64_MAX : INT64_MIN);
  }
  return Money(sum);
}

Money Money::operator-(Money other) const {
  int64_t rest = 0;
  if (__builtin_sub_overflow(nanos_, other.nanos_, &rest)) {
    return Money(other.nanos_ < 0 ? INT64_MAX : INT64_MIN);
  }
  return Money(rest);
}

Money Money::operator*(double factor) const {
  return Money(to_nanos(static_cast<double>(nanos_) * factor));
}

Result<Money> parse_money(std::string_view text) {
  const std::string_view whole = text;
  text = trim(text);
  if (text.starts_with('$')) {
    text = trim(text.substr(1));
  }
  double value = 0;
  if (!take_number(text, value) || value > 9e9) {
    return bad("sum of money", whole, kMoneyForm);
  }
  text = trim(text);
  const std::string word = take_word(text);
  if (!text.empty() || (!word.empty() && word != "usd")) {
    return bad("sum of money", whole, kMoneyForm);
  }
  return Money::from_dollars(value);
}

std::string format_money(Money value) {
  if (value.nanos() < 0) {
    // The least has no opposite.
    return "-" + format_money(Money::from_dollars(-value.dollars()));
  }
  const double dollars = value.dollars();
  if (dollars == 0 || dollars >= 1) {
    return fmt::format("${:.2f}", dollars);
  }
  if (dollars >= 0.01) {
    return fmt::format("${:.4f}", dollars);
  }
  return fmt::format("${:.6f}", dollars);
}

Result<Bytes> parse_bytes(std::string_view text) {
  const std::string_view whole = text;
  text = trim(text);
  double value = 0;
  if (!take_number(text, value)) {
    return bad("number of bytes", whole, kBytesForm);
  }
  text = trim(text);
  const std::string word = take_word(text);
  for (const auto& unit : kByteUnits) {
    const double bytes = value * unit.factor;
    if (unit.name == word && text.empty() && bytes <= kMaxBytes) {
      return Bytes{static_cast<uint64_t>(std::llround(bytes))};
    }
  }
  return bad("number of bytes", whole, kBytesForm);
}

std::string format_bytes(Bytes value) {
  constexpr std::array kNames = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto amount = static_cast<double>(value.count);
  size_t index = 0;
  while (amount >= 1024 && index + 1 < kNames.size()) {
    amount /= 1024;
    ++index;
  }
  return index == 0 ? fmt::format("{} B", value.count)
                    : fmt::format("{:.1f} {}", amount, kNames[index]);
}

}  // namespace lockstep
