#pragma once

// How control and shared code fails: a Result<T> holds a value or an Error.
// An Error is made where the failure is seen, gains context on its way up, and
// is printed once, at the top. Values, no threads, nothing thrown.

#include <expected>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

enum class ErrorCode {
  kInvalidInput,  // the user must change what was given
  kNotFound,
  kExists,
  kPermission,
  kNoSpace,
  kCorrupt,  // a file or frame is not what it says it is
  kIo,
  kTimeout,
  kUnavailable,  // a machine, service or peer is not there
  kAborted,      // somebody else ended it
  kInterrupted,  // the user ended it
  kInternal,
};

std::string_view to_string(ErrorCode code);

class Error {
 public:
  Error(ErrorCode code, std::string message)
      : code_(code), message_(std::move(message)) {}

  ErrorCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& fix() const { return fix_; }
  bool retry() const { return retry_; }

  // Says what was being done, from the outside in: "reading job.yaml".
  Error&& with_context(std::string what) &&;
  // What the user can do next: "run 'lockstep data get cifar10'".
  Error&& with_fix(std::string what) &&;
  // The same call may succeed later.
  Error&& with_retry() &&;

  // "outer: inner: message; fix". One line.
  std::string to_string() const;

 private:
  ErrorCode code_;
  std::string message_;
  std::vector<std::string> context_;  // innermost first
  std::string fix_;
  bool retry_ = false;
};

// std::expected with [[nodiscard]] on the type: an ignored failure warns.
template <class T>
class [[nodiscard]] Result : public std::expected<T, Error> {
 public:
  using std::expected<T, Error>::expected;
  Result(Error error)
      : std::expected<T, Error>(std::unexpected<Error>(std::move(error))) {}

  Result with_context(std::string what) && {
    if (*this) {
      return std::move(*this);
    }
    return std::move(this->error()).with_context(std::move(what));
  }
};

// An error of the operating system: errno's text, its class, `what` failed.
Error os_error(std::string what, int errno_value);

}  // namespace lockstep

// Runs a Result<void> (or drops a value) and returns its error to the caller.
#define LOCKSTEP_TRY(expression)                                     \
  do {                                                               \
    if (auto lockstep_result_ = (expression); !lockstep_result_) {   \
      return ::lockstep::Error(std::move(lockstep_result_.error())); \
    }                                                                \
  } while (false)

// LOCKSTEP_ASSIGN(auto x, make()): x, or the error to the caller.
#define LOCKSTEP_ASSIGN(declaration, expression)                     \
  declaration = ({                                                   \
    auto lockstep_result_ = (expression);                            \
    if (!lockstep_result_) {                                         \
      return ::lockstep::Error(std::move(lockstep_result_.error())); \
    }                                                                \
    std::move(*lockstep_result_);                                    \
  })
