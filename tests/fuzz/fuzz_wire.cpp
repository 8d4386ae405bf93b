// Bytes that a stranger sends: frames, greetings and rendezvous messages.

#include <algorithm>

#include "lockstep/wire/frame.h"
#include "lockstep/wire/handshake.h"
#include "lockstep/wire/rendezvous_protocol.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/script.h"

namespace {

using namespace lockstep;

void run(std::string_view input) {
  os::Deadline deadline = os::Deadline::never();
  fuzz::Script frames(input);
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
  fuzz::Script client(input);
  fuzz::expect(
      !wire::greet_as_server(client, key, "fuzz", deadline),
      "a stranger is not let in");
  fuzz::Script server(input);
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
