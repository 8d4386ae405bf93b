// Bytes that a stranger sends: frames, greetings and rendezvous messages.

#include <algorithm>

#include "lockstep/wire/frame.h"
#include "lockstep/wire/handshake.h"
#include "lockstep/wire/rendezvous_protocol.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

// A peer that says what the input says and takes everything.
class Script : public os::Connection {
 public:
  explicit Script(std::string_view text) : text_(text) {}
  Result<size_t> read_some(std::span<std::byte> buffer, os::Deadline) override {
    size_t count = std::min(buffer.size(), text_.size());
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

void run(std::string_view input) {
  os::Deadline deadline = os::Deadline::never();
  Script frames(input);
  for (size_t count = 0; count < 64; ++count) {
    auto frame = wire::read_frame(frames, deadline, 1 << 16);
    if (!frame) {
      break;
    }
    if (auto request = wire::parse_request(*frame)) {
      auto again = wire::parse_request(wire::format_request(*request));
      fuzz::expect(
          again && again->key == request->key &&
              again->value == request->value &&
              again->patience == request->patience,
          "a request reads back");
    }
    if (auto reply = wire::parse_reply(*frame)) {
      fuzz::expect(wire::format_reply(*reply) == *frame, "a reply reads back");
    }
  }
  Key key{};
  Script client(input);
  fuzz::expect(
      !wire::greet_as_server(client, key, "fuzz", deadline),
      "a stranger is not let in");
  Script server(input);
  fuzz::expect(
      !wire::greet_as_client(server, key, "fuzz", deadline),
      "a stranger is not believed");
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "wire",
       .run = run,
       .dictionary =
           {"LSK1",
            std::string(32, '\0'),
            std::string("\x05\0\0\0", 4),
            std::string("P\x01\0\0\0k", 6),
            std::string("G\x01\0\0\0k", 6),
            "Y",
            "N",
            "\x01",
            "\xff\xff\xff\xff"},
       .max_size = 1024});
}
