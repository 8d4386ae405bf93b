#pragma once

// Invariants of the program itself, never user input: a failed check prints
// the expression with both values and its place, and aborts.

#include <fmt/format.h>

#include <string>

namespace lockstep::internal {
[[noreturn]] void
check_failed(const char* file, int line, const std::string& what);
}  // namespace lockstep::internal

#define LOCKSTEP_CHECK(condition, ...)                                  \
  do {                                                                  \
    if (!(condition)) [[unlikely]] {                                    \
      ::lockstep::internal::check_failed(                               \
          __FILE__, __LINE__, #condition __VA_OPT__(": ") __VA_ARGS__); \
    }                                                                   \
  } while (false)

#define LOCKSTEP_CHECK_OP_(a, op, b)                  \
  do {                                                \
    const auto& lockstep_a_ = (a);                    \
    const auto& lockstep_b_ = (b);                    \
    if (!(lockstep_a_ op lockstep_b_)) [[unlikely]] { \
      ::lockstep::internal::check_failed(             \
          __FILE__,                                   \
          __LINE__,                                   \
          fmt::format(                                \
              #a " " #op " " #b " ({} against {})",   \
              lockstep_a_,                            \
              lockstep_b_));                          \
    }                                                 \
  } while (false)

#define LOCKSTEP_CHECK_EQ(a, b) LOCKSTEP_CHECK_OP_(a, ==, b)
#define LOCKSTEP_CHECK_LT(a, b) LOCKSTEP_CHECK_OP_(a, <, b)
#define LOCKSTEP_CHECK_LE(a, b) LOCKSTEP_CHECK_OP_(a, <=, b)
