#include <fmt/format.h>

#include <charconv>

#include "lockstep/os/socket.h"

namespace lockstep::os {
namespace {

constexpr size_t kMaxUnixPath = 107;  // sun_path without its final zero

Error bad_address(const std::string& text, const std::string& why) {
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "bad address '{}': {}; accepted: HOST:PORT, [IPV6]:PORT, "
          "unix:/PATH, unix:@NAME",
          text,
          why));
}

}  // namespace

std::string Address::to_string() const {
  if (!unix_path.empty()) {
    return "unix:" + unix_path;
  }
  if (host.find(':') != std::string::npos) {
    return fmt::format("[{}]:{}", host, port);
  }
  return fmt::format("{}:{}", host, port);
}

Result<Address> parse_address(const std::string& text) {
  Address address;
  if (text.starts_with("unix:")) {
    address.unix_path = text.substr(5);
    if (address.unix_path.empty() || address.unix_path == "@") {
      return bad_address(text, "no path");
    }
    if (address.unix_path.size() > kMaxUnixPath) {
      return bad_address(
          text, fmt::format("a path has at most {} bytes", kMaxUnixPath));
    }
    if (address.unix_path.find('\0') != std::string::npos) {
      return bad_address("unix:...", "zero byte in the path");
    }
    return address;
  }
  size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    return bad_address(text, "no port");
  }
  address.host = text.substr(0, colon);
  if (address.host.starts_with('[') && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
  } else if (address.host.find(':') != std::string::npos) {
    return bad_address(text, "an IPv6 address needs brackets");
  }
  if (address.host.empty()) {
    return bad_address(text, "no host");
  }
  std::string_view port = std::string_view(text).substr(colon + 1);
  auto [end, error] =
      std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size()) {
    return bad_address(text, "a port is a number from 0 to 65535");
  }
  return address;
}

}  // namespace lockstep::os
