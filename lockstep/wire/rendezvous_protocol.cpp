#include "lockstep/wire/rendezvous_protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

namespace lockstep::wire {
namespace {

constexpr size_t kNumberAt = 1;
constexpr size_t kRestAt = 5;

std::string number_bytes(uint32_t number) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) {
    bytes += static_cast<char>((number >> shift) & 0xff);
  }
  return bytes;
}

uint32_t number_of(std::string_view frame) {
  uint32_t number = 0;
  for (size_t i = 0; i < 4; ++i) {
    number |= static_cast<uint32_t>(static_cast<uint8_t>(frame[kNumberAt + i]))
              << (8 * i);
  }
  return number;
}

Error corrupt() {
  return Error(ErrorCode::kCorrupt, "not a message of the rendezvous");
}

}  // namespace

std::string format_request(const Request& request) {
  if (request.is_put) {
    return fmt::format(
        "P{}{}{}",
        number_bytes(static_cast<uint32_t>(request.key.size())),
        request.key,
        request.value);
  }
  // Rounded up: a patience of less than a millisecond still waits.
  auto patience = std::chrono::ceil<std::chrono::milliseconds>(
      std::clamp(request.patience, Duration::zero(), kMaxPatience));
  return fmt::format(
      "G{}{}",
      number_bytes(static_cast<uint32_t>(patience.count())),
      request.key);
}

Result<Request> parse_request(std::string_view frame) {
  if (frame.size() < kRestAt) {
    return corrupt();
  }
  Request request;
  uint32_t number = number_of(frame);
  std::string_view rest = frame.substr(kRestAt);
  if (frame[0] == 'P' && number <= rest.size()) {
    request.is_put = true;
    request.key = rest.substr(0, number);
    request.value = rest.substr(number);
    return request;
  }
  if (frame[0] == 'G') {
    request.patience =
        std::min<Duration>(std::chrono::milliseconds(number), kMaxPatience);
    request.key = rest;
    return request;
  }
  return corrupt();
}

std::string format_reply(const Reply& reply) {
  return reply.found ? "Y" + reply.value : "N";
}

Result<Reply> parse_reply(std::string_view frame) {
  if (frame.starts_with('Y')) {
    return Reply{.found = true, .value = std::string(frame.substr(1))};
  }
  if (frame == "N") {
    return Reply{};
  }
  return corrupt();
}

}  // namespace lockstep::wire
