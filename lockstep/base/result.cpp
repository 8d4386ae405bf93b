#include "lockstep/base/result.h"

#include <cerrno>
#include <system_error>

namespace lockstep {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidInput:
      return "invalid input";
    case ErrorCode::kNotFound:
      return "not found";
    case ErrorCode::kExists:
      return "exists";
    case ErrorCode::kPermission:
      return "permission";
    case ErrorCode::kNoSpace:
      return "no space";
    case ErrorCode::kCorrupt:
      return "corrupt";
    case ErrorCode::kIo:
      return "input/output";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kUnavailable:
      return "unavailable";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kInterrupted:
      return "interrupted";
    case ErrorCode::kInternal:
      return "internal";
  }
  return "unknown";
}

Error&& Error::with_context(std::string what) && {
  context_.push_back(std::move(what));
  return std::move(*this);
}

Error&& Error::with_fix(std::string what) && {
  fix_ = std::move(what);
  return std::move(*this);
}

Error&& Error::with_retry() && {
  retry_ = true;
  return std::move(*this);
}

std::string Error::to_string() const {
  std::string text;
  for (auto it = context_.rbegin(); it != context_.rend(); ++it) {
    text += *it + ": ";
  }
  text += message_;
  if (!fix_.empty()) {
    text += "; " + fix_;
  }
  return text;
}

Error os_error(std::string what, int errno_value) {
  ErrorCode code = ErrorCode::kIo;
  bool retry = false;
  switch (errno_value) {
    case ENOENT:
    case ENOTDIR:
      code = ErrorCode::kNotFound;
      break;
    case EEXIST:
      code = ErrorCode::kExists;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = ErrorCode::kPermission;
      break;
    case ENOSPC:
    case EDQUOT:
      code = ErrorCode::kNoSpace;
      break;
    case ETIMEDOUT:
      code = ErrorCode::kTimeout;
      retry = true;
      break;
    case ECONNREFUSED:
    case ECONNRESET:
    case EPIPE:
    case EHOSTUNREACH:
    case ENETUNREACH:
    case EADDRINUSE:
      code = ErrorCode::kUnavailable;
      retry = true;
      break;
    default:
      break;
  }
  Error error(code, what + ": " + std::generic_category().message(errno_value));
  if (retry) {
    return std::move(error).with_retry();
  }
  return error;
}

}  // namespace lockstep
