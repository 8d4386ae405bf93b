#pragma once

// Names that never collide: run ids and keys.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// What a name gives for a file: small letters, digits, '_' and '-', at most 40
// and some.
std::string file_name_of(std::string_view name);

// "<name>-20261115-083012-x7k2f9": sorts by time, unique by 30 random bits.
// Characters outside [a-z0-9_-] of the name become '-'.
std::string make_run_id(std::string_view name, int64_t unix_seconds);

// A per-run secret from the system's random source.
using Key = std::array<uint8_t, 32>;
Key make_key();
std::string to_hex(const Key& key);
// False when the text is not 64 hexadecimal digits.
bool from_hex(std::string_view text, Key& key);

}  // namespace lockstep
