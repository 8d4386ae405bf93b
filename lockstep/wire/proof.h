#pragma once

// The bytes of the hand-shake, shared by those who speak it: handshake.cpp over
// a connection that blocks, channel.cpp without blocking. All of fixed size:
//   client -> server   magic, client's challenge
//   server -> client   magic, server's challenge
//   client -> server   proof
//   server -> client   1 and its proof, or 0 and zeroes when it refuses
// The client proves itself first: a stranger learns nothing made with the key.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/base/id.h"

namespace lockstep::wire {

inline constexpr std::array<uint8_t, 4> kMagic = {'L', 'S', 'K', '1'};

using Proof = std::array<uint8_t, 32>;

struct Hello {
  std::array<uint8_t, 4> magic = kMagic;
  Key challenge{};
};

struct Answer {
  uint8_t accepted = 0;
  Proof proof{};
};

// Messages are plain bytes without padding.
static_assert(sizeof(Hello) == 36 && sizeof(Answer) == 33);

// What both ends know after the hellos.
struct Talk {
  const Key* key = nullptr;
  std::string_view purpose;
  Key client{};
  Key server{};

  // The role keeps one end's proof from being sent back to it; the lengths of
  // what follows the purpose are fixed, so no two talks read alike.
  Proof prove(std::string_view role) const;
};

// In a time that does not tell how many bytes agree.
bool equal(const Proof& a, const Proof& b);

inline constexpr const char* kStranger = "does not speak the lockstep protocol";
inline constexpr const char* kWrongKey = "does not hold the key of this run";
inline constexpr const char* kRefusedKey =
    "refused the key: it belongs to another run";

}  // namespace lockstep::wire
