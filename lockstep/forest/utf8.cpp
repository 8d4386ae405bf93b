#include "lockstep/forest/utf8.h"

#include <fmt/format.h>

#include <cstdint>

namespace lockstep::forest {
namespace {

uint8_t byte_at(std::string_view text, size_t i) {
  return i < text.size() ? static_cast<uint8_t>(text[i]) : 0;
}

// Bytes of the character at the front; 0: none that is well-formed (RFC 3629).
size_t length_at_front(std::string_view text) {
  const uint8_t first = byte_at(text, 0);
  const uint8_t second = byte_at(text, 1);
  if (first < 0x80) {
    return 1;
  }
  const size_t length = first < 0xc2   ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  for (size_t i = 1; i < length; ++i) {
    if (byte_at(text, i) >> 6 != 2) {
      return 0;
    }
  }
  const bool too_long =
      (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool no_character =
      (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return too_long || no_character ? 0 : length;
}

}  // namespace

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = length_at_front(text);
    if (length == 0) {
      return false;
    }
    text.remove_prefix(length);
  }
  return true;
}

std::string printable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const uint8_t byte = byte_at(text, 0);
    const size_t length = length_at_front(text);
    if (length == 0 || byte < 0x20 || byte == 0x7f) {
      shown += fmt::format("\\x{:02x}", byte);
      text.remove_prefix(1);
    } else {
      shown += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return shown;
}

}  // namespace lockstep::forest
