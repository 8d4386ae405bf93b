#pragma once

// The classes of what a cloud answers when it refuses, so that callers decide
// by class and never by the cloud's words, which stay in the message. Every
// error of a provider is made by cloud_error; its message starts with the
// class, for people and for failure_of, and context or a fix added later do not
// hide it. Pure.

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/result.h"

namespace lockstep::cloud {

enum class Failure {
  kCapacity,     // none of these machines is free there now; elsewhere maybe
  kQuota,        // the account may not have more of them
  kCredentials,  // absent, wrong or expired, or the clock here is wrong
  kPermission,   // the account may not do this; the message names the action
  kThrottled,    // too many calls; later
  kNotFound,     // what the call names is not there
  kBadRequest,   // the call can never work
  kTransient,    // the cloud or the way to it failed; later
};

// "no capacity", "quota", "credentials", "permission", "throttled", "not
// found", "bad request", "cloud failed".
std::string_view to_string(Failure failure);

// "<class>: <words>". Throttled and transient ones may be tried again.
Error cloud_error(Failure failure, const std::string& words);

// None: the error is not of a cloud.
std::optional<Failure> failure_of(const Error& error);

// Whether another zone or type may do what this one did not: capacity and
// quota, the second for another type only.
bool is_shortage(const Error& error);

}  // namespace lockstep::cloud
