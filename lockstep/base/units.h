#pragma once

// Values that carry their unit: Duration, Money, Bytes. Each parses what a
// user writes and prints what a user reads; parse(print(x)) is close to x.

#include <chrono>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/result.h"

namespace lockstep {

using Duration = std::chrono::nanoseconds;

// "90s", "1h30m", "250ms", "2d", "1.5h"; a bare number is seconds.
Result<Duration> parse_duration(std::string_view text);
// "1h 30m", "2m 05s", "12.3 s", "250 ms", "12 us".
std::string format_duration(Duration value);
double to_seconds(Duration value);
Duration from_seconds(double seconds);

// Dollars, held as whole nano-dollars so that sums are exact.
class Money {
 public:
  constexpr Money() = default;
  static constexpr Money from_nanos(int64_t nanos) { return Money(nanos); }
  static Money from_dollars(double dollars);
  constexpr int64_t nanos() const { return nanos_; }
  double dollars() const { return static_cast<double>(nanos_) / 1e9; }
  auto operator<=>(const Money&) const = default;
  // A sum that is too large stays at the largest: it never turns negative.
  Money operator+(Money other) const;
  Money operator-(Money other) const;
  Money operator*(double factor) const;

 private:
  explicit constexpr Money(int64_t nanos) : nanos_(nanos) {}
  int64_t nanos_ = 0;
};

// "20 USD", "$20", "0.5", "20usd".
Result<Money> parse_money(std::string_view text);
// "$12.34", "$0.0042": two digits after the point, more below a dollar.
std::string format_money(Money value);

struct Bytes {
  uint64_t count = 0;
  auto operator<=>(const Bytes&) const = default;
};

// "16", "64KiB", "1.5 GB", "2GiB": powers of 1024 with an i, 1000 without.
Result<Bytes> parse_bytes(std::string_view text);
// "1.5 GiB", "512 B".
std::string format_bytes(Bytes value);

}  // namespace lockstep
