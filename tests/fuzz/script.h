#pragma once

// A peer that says what the input says and takes everything.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/os/socket.h"

namespace lockstep::fuzz {

class Script : public os::Connection {
 public:
  explicit Script(std::string_view text) : text_(text) {}
  Result<size_t> read_some(std::span<std::byte> buffer, os::Deadline) override {
    const size_t count = std::min(buffer.size(), text_.size());
    std::copy_n(
        reinterpret_cast<const std::byte*>(text_.data()), count, buffer.data());
    text_.remove_prefix(count);
    return count;
  }
  Result<void> write_all(std::span<const std::byte>, os::Deadline) override {
    return {};
  }
  void close() override {}
  std::string peer() const override { return "script"; }

 private:
  std::string_view text_;
};

}  // namespace lockstep::fuzz
