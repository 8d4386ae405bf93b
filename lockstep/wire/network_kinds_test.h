#pragma once

// Runs a test over the real loopback and over the fake network.

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lockstep/os/socket.h"

namespace lockstep::wire {

class OverNetworks : public ::testing::TestWithParam<bool> {
 protected:
  OverNetworks() {
    if (GetParam()) {
      fake_ = os::make_fake_network();
    }
  }
  os::Network& network() { return fake_ ? *fake_ : os::real_network(); }
  static os::Address any() { return {"127.0.0.1", 0, ""}; }
  static os::Deadline soon() {
    return os::Deadline::after(std::chrono::seconds(60));
  }
  void pair() {
    listener_ = network().listen(any()).value();
    client_ = network().connect(listener_->address(), soon()).value();
    server_ = listener_->accept(soon()).value();
  }
  static void send(os::Connection& connection, std::string_view text) {
    EXPECT_TRUE(connection.write_all(
        std::as_bytes(std::span(text.data(), text.size())), soon()));
  }
  static std::string receive(os::Connection& connection, size_t size) {
    std::string text(size, '\0');
    EXPECT_TRUE(connection.read_all(
        std::as_writable_bytes(std::span(text.data(), size)), soon()));
    return text;
  }
  std::unique_ptr<os::Network> fake_;
  std::unique_ptr<os::Listener> listener_;
  std::unique_ptr<os::Connection> client_;
  std::unique_ptr<os::Connection> server_;
};

inline std::string network_name(const ::testing::TestParamInfo<bool>& info) {
  return info.param ? "fake" : "loopback";
}

}  // namespace lockstep::wire
