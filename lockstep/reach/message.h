#pragma once

// Requests and answers between a session and its far end, as CBOR in frames.
// Bytes that are no message give kCorrupt. Pure, but for the connection.

#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/os/socket.h"

namespace lockstep::reach {

struct Request {
  std::string verb;
  nlohmann::json arguments;
};

Result<void> write_request(
    os::Connection& connection,
    const Request& request,
    os::Deadline deadline);
Result<Request> read_request(os::Connection& connection, os::Deadline deadline);

Result<void> write_answer(
    os::Connection& connection,
    const Result<nlohmann::json>& answer,
    os::Deadline deadline);
// The outer error: the session broke; the inner: what the far end said.
Result<Result<nlohmann::json>> read_answer(
    os::Connection& connection,
    os::Deadline deadline);

// What is no CBOR gives null: nothing is thrown.
nlohmann::json parse_cbor(const std::string& text);

// A field of a message that must be there: kCorrupt names the one that is
// not, or is of another kind.
Result<std::string> text_field(const nlohmann::json& from, const char* name);
Result<uint64_t> number_field(const nlohmann::json& from, const char* name);
Result<std::string> bytes_field(const nlohmann::json& from, const char* name);
nlohmann::json to_bytes(std::string_view text);

}  // namespace lockstep::reach
