// Words between heads and agents: CBOR from somebody who holds the key and may
// still be of another version, or broken.

#include "lockstep/launch/agent_protocol.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

template <class Message>
void judge(
    const Result<Message>& message,
    Result<Message> (*decode)(std::string_view)) {
  if (!message) {
    fuzz::expect(
        message.error().code() == ErrorCode::kCorrupt,
        "a bad message is corrupt");
    return;
  }
  const std::string bytes = launch::encode(*message);
  const auto again = decode(bytes);
  fuzz::expect(again.has_value(), "what encode writes can be read");
  fuzz::expect(launch::encode(*again) == bytes, "messages read back exactly");
}

void run(std::string_view input) {
  judge(launch::decode_agent_message(input), launch::decode_agent_message);
  judge(launch::decode_head_message(input), launch::decode_head_message);
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "agent_protocol",
       .run = run,
       .dictionary =
           {"dtype",
            "djoin",
            "dbeat",
            "greports",
            "ebytes",
            "drest",
            "gwelcome",
            "estart",
            "cend",
            "ginspect",
            "cbye",
            "dkind",
            "drank",
            "fsignal",
            "egrace",
            "jgeneration",
            "hcommands",
            "kenvironment",
            "\x80",
            "\xa0",
            "\xa1",
            "\xbf",
            "\x9f",
            "\xff",
            "\xf5",
            std::string("\x1b\x7f\xff\xff\xff\xff\xff\xff\xff", 9),
            std::string("\x3b\xff\xff\xff\xff\xff\xff\xff\xff", 9),
            std::string("\xfb\x7f\xf8\0\0\0\0\0\0", 9)},
       .max_size = 4096});
}
