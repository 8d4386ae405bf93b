#include "lockstep/wire/frame.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>

namespace lockstep::wire {
namespace {

constexpr size_t kHeader = 4;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

}  // namespace

Result<void> write_frame(
    os::Connection& connection,
    std::string_view payload,
    os::Deadline deadline) {
  if (payload.size() > kMaxFrame) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "a message of {} bytes is over the limit of {}",
            payload.size(),
            kMaxFrame));
  }
  // One write, so that a small message is one packet.
  std::string frame;
  frame.reserve(kHeader + payload.size());
  for (size_t i = 0; i < kHeader; ++i) {
    frame += static_cast<char>((payload.size() >> (8 * i)) & 0xff);
  }
  frame += payload;
  return connection.write_all(bytes_of(frame), deadline);
}

Result<std::string>
read_frame(os::Connection& connection, os::Deadline deadline, size_t limit) {
  std::array<std::byte, kHeader> header{};
  LOCKSTEP_TRY(connection.read_all(header, deadline));
  size_t size = 0;
  for (size_t i = 0; i < kHeader; ++i) {
    size |= std::to_integer<size_t>(header[i]) << (8 * i);
  }
  if (size > limit) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format(
            "{} announced a message of {} bytes, the limit is {}",
            connection.peer(),
            size,
            limit));
  }
  std::string payload(size, '\0');
  LOCKSTEP_TRY(connection.read_all(
      std::as_writable_bytes(std::span(payload.data(), size)), deadline));
  return payload;
}

}  // namespace lockstep::wire
