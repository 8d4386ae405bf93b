#include "lockstep/reach/message.h"

#include <fmt/format.h>

#include "lockstep/wire/frame.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;

Error corrupt(const std::string& what) {
  return Error(ErrorCode::kCorrupt, what);
}

Result<void>
write_cbor(os::Connection& connection, const json& message, os::Deadline at) {
  std::string text;
  json::to_cbor(message, text);
  return wire::write_frame(connection, text, at);
}

Result<json> read_cbor(os::Connection& connection, os::Deadline deadline) {
  LOCKSTEP_ASSIGN(
      const std::string text, wire::read_frame(connection, deadline));
  json message = parse_cbor(text);
  if (!message.is_object()) {
    return corrupt(
        fmt::format("{} sent what is no message", connection.peer()));
  }
  return message;
}

ErrorCode code_named(const std::string& name) {
  for (int value = 0; value <= static_cast<int>(ErrorCode::kInternal);
       ++value) {
    if (to_string(static_cast<ErrorCode>(value)) == name) {
      return static_cast<ErrorCode>(value);
    }
  }
  return ErrorCode::kInternal;
}

// With its context, without its fix, which travels apart.
std::string words_of(const Error& error) {
  std::string text = error.to_string();
  const std::string tail = "; " + error.fix();
  if (!error.fix().empty() && text.ends_with(tail)) {
    text.resize(text.size() - tail.size());
  }
  return text;
}

json to_json(const Error& error) {
  return {
      {"code", std::string(to_string(error.code()))},
      {"message", words_of(error)},
      {"fix", error.fix()},
      {"retry", error.retry()}};
}

Error to_error(const json& from) {
  const auto text = [&](const char* name) {
    const auto found = from.find(name);
    return found != from.end() && found->is_string() ? found->get<std::string>()
                                                     : std::string();
  };
  Error error(code_named(text("code")), text("message"));
  if (const std::string fix = text("fix"); !fix.empty()) {
    (void)std::move(error).with_fix(fix);
  }
  if (const auto retry = from.find("retry");
      retry != from.end() && retry->is_boolean() && retry->get<bool>()) {
    (void)std::move(error).with_retry();
  }
  return error;
}

}  // namespace

json parse_cbor(const std::string& text) {
  // Sizes beyond all bounds are thrown whatever is asked for.
  try {
    json value = json::from_cbor(text, true, false);
    return value.is_discarded() ? json() : value;
  } catch (const json::exception&) {
    return {};
  }
}

Result<void> write_request(
    os::Connection& connection,
    const Request& request,
    os::Deadline deadline) {
  return write_cbor(
      connection,
      {{"verb", request.verb}, {"arguments", request.arguments}},
      deadline);
}

Result<Request> read_request(
    os::Connection& connection,
    os::Deadline deadline) {
  LOCKSTEP_ASSIGN(json message, read_cbor(connection, deadline));
  LOCKSTEP_ASSIGN(std::string verb, text_field(message, "verb"));
  json arguments = message.value("arguments", json::object());
  if (arguments.is_null()) {
    arguments = json::object();
  }
  if (!arguments.is_object()) {
    return corrupt("arguments are not an object");
  }
  return Request{std::move(verb), std::move(arguments)};
}

Result<void> write_answer(
    os::Connection& connection,
    const Result<json>& answer,
    os::Deadline deadline) {
  return write_cbor(
      connection,
      answer ? json{{"ok", *answer}} : json{{"error", to_json(answer.error())}},
      deadline);
}

Result<Result<json>> read_answer(
    os::Connection& connection,
    os::Deadline deadline) {
  LOCKSTEP_ASSIGN(json message, read_cbor(connection, deadline));
  if (const auto found = message.find("error");
      found != message.end() && found->is_object()) {
    return Result<json>(to_error(*found));
  }
  const auto found = message.find("ok");
  if (found == message.end()) {
    return corrupt(
        fmt::format("{} sent neither answer nor error", connection.peer()));
  }
  return Result<json>(std::move(*found));
}

Result<std::string> text_field(const json& from, const char* name) {
  const auto found = from.find(name);
  if (found == from.end() || !found->is_string()) {
    return corrupt(fmt::format("a message lacks the text '{}'", name));
  }
  return found->get<std::string>();
}

Result<uint64_t> number_field(const json& from, const char* name) {
  const auto found = from.find(name);
  if (found == from.end() || !found->is_number_integer() ||
      (!found->is_number_unsigned() && found->get<int64_t>() < 0)) {
    return corrupt(fmt::format("a message lacks the number '{}'", name));
  }
  return found->get<uint64_t>();
}

Result<std::string> bytes_field(const json& from, const char* name) {
  const auto found = from.find(name);
  if (found == from.end() || !found->is_binary()) {
    return corrupt(fmt::format("a message lacks the bytes '{}'", name));
  }
  const auto& bytes = found->get_binary();
  return std::string(bytes.begin(), bytes.end());
}

json to_bytes(std::string_view text) {
  return json::binary(std::vector<uint8_t>(text.begin(), text.end()));
}

}  // namespace lockstep::reach
