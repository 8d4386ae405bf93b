#include "lockstep/cloud/failure.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace lockstep::cloud {
namespace {

struct Row {
  Failure failure;
  std::string_view words;
  ErrorCode code;
  bool retry;
};

constexpr std::array kRows = {
    Row{Failure::kCapacity, "no capacity", ErrorCode::kUnavailable, false},
    Row{Failure::kQuota, "quota", ErrorCode::kUnavailable, false},
    Row{Failure::kCredentials, "credentials", ErrorCode::kPermission, false},
    Row{Failure::kPermission, "permission", ErrorCode::kPermission, false},
    Row{Failure::kThrottled, "throttled", ErrorCode::kUnavailable, true},
    Row{Failure::kNotFound, "not found", ErrorCode::kNotFound, false},
    Row{Failure::kBadRequest, "bad request", ErrorCode::kInvalidInput, false},
    Row{Failure::kTransient, "cloud failed", ErrorCode::kUnavailable, true},
};

const Row& row_of(Failure failure) {
  return *std::ranges::find(kRows, failure, &Row::failure);
}

}  // namespace

std::string_view to_string(Failure failure) {
  return row_of(failure).words;
}

Error cloud_error(Failure failure, const std::string& words) {
  const Row& row = row_of(failure);
  Error error(row.code, fmt::format("{}: {}", row.words, words));
  return row.retry ? std::move(error).with_retry() : error;
}

std::optional<Failure> failure_of(const Error& error) {
  const std::string_view message = error.message();
  for (const Row& row : kRows) {
    if (error.code() == row.code && message.starts_with(row.words) &&
        message.substr(row.words.size()).starts_with(": ")) {
      return row.failure;
    }
  }
  return {};
}

bool is_shortage(const Error& error) {
  const auto failure = failure_of(error);
  return failure == Failure::kCapacity || failure == Failure::kQuota;
}

}  // namespace lockstep::cloud
