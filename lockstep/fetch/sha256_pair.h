#pragma once

// SHA-256 of two messages side by side. One message leaves the processor's SHA
// instructions idle half of the time, since each round waits for the one before
// it; a second one fills the gaps, and two cost little more than one. Signing
// over http hashes all that is sent: there it is most of an upload's work.
// Without those instructions OpenSSL hashes one after the other. Used by one
// thread.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::fetch {

class Sha256Pair {
 public:
  static constexpr size_t kBlock = 64;

  Sha256Pair();
  ~Sha256Pair();
  Sha256Pair(Sha256Pair&&) noexcept;

  // The next piece of each message, of any size each, also none. Every piece
  // but the last of a message is a multiple of kBlock.
  void update(std::string_view first, std::string_view second);
  // Once, at the end: both in lower-case hexadecimal digits.
  std::array<std::string, 2> finish();

  // Whether this processor does both at once.
  static bool is_fast();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::fetch
