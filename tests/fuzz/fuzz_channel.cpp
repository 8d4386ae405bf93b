// Bytes that a stranger sends to a channel: before the hand-shake, and into one
// that is open.

#include <sys/socket.h>

#include <algorithm>
#include <memory>

#include "lockstep/wire/channel.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;
using wire::Channel;
using wire::ChannelRole;

const Key kKey{};

struct Pair {
  os::Descriptor left, right;
  Pair() {
    int ends[2];
    fuzz::expect(
        ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
        "there are sockets");
    left = os::Descriptor(ends[0]);
    right = os::Descriptor(ends[1]);
  }
};

void put(const os::Descriptor& to, std::string_view text) {
  if (!text.empty()) {
    (void)!::send(to.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
}

std::string get(const os::Descriptor& from) {
  char block[4096];
  const ssize_t size = ::recv(from.get(), block, sizeof block, MSG_DONTWAIT);
  return {block, static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

void as_stranger(ChannelRole role, std::string_view input) {
  Pair pair;
  const auto channel = Channel::make(std::move(pair.left), role, kKey, "fuzz");
  put(pair.right, input);
  std::vector<std::string> messages;
  (void)channel->pump(messages).has_value();
  fuzz::expect(!channel->ready(), "a stranger is not let in");
  fuzz::expect(messages.empty(), "a stranger says nothing");
}

// One who listens to a good talk and puts bytes into it.
void in_the_middle(std::string_view input) {
  Pair up;
  Pair down;
  const auto client =
      Channel::make(std::move(up.left), ChannelRole::kClient, kKey, "fuzz");
  const auto server =
      Channel::make(std::move(down.left), ChannelRole::kServer, kKey, "fuzz");
  std::vector<std::string> at_client;
  std::vector<std::string> at_server;
  for (int turn = 0; turn < 4; ++turn) {
    (void)client->pump(at_client).has_value();
    put(down.right, get(up.right));
    (void)server->pump(at_server).has_value();
    put(up.right, get(down.right));
  }
  fuzz::expect(client->ready() && server->ready(), "the key lets in");
  (void)client->send("genuine").has_value();
  const std::string frame = get(up.right);
  put(down.right, frame);
  put(down.right, input);
  put(down.right, frame);
  const auto result = server->pump(at_server);
  fuzz::expect(
      at_server == std::vector<std::string>{"genuine"},
      "what was put in is not believed");
  fuzz::expect(
      result || result.error().code() == ErrorCode::kPermission,
      "a broken rule is told as one");
}

void run(std::string_view input) {
  as_stranger(ChannelRole::kServer, input);
  as_stranger(ChannelRole::kClient, input);
  in_the_middle(input);
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "channel",
       .run = run,
       .dictionary =
           {"LSK1",
            std::string(32, '\0'),
            std::string(16, '\0'),
            std::string("\x05\0\0\0", 4),
            std::string("\0\0\0\x01", 4),
            "\x01",
            "\xff\xff\xff\xff"},
       .max_size = 1024});
}
