#include "lockstep/wire/handshake.h"

#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "lockstep/os/file.h"
#include "lockstep/wire/network_kinds_test.h"

namespace lockstep::wire {
namespace {

constexpr size_t kHelloSize = 36;
constexpr size_t kProofSize = 32;

class Greeting : public OverNetworks {
 protected:
  struct Ends {
    Result<void> client;
    Result<void> server;
  };
  Ends greet(
      const Key& client_key,
      const Key& server_key,
      std::string_view client_purpose,
      std::string_view server_purpose) {
    pair();
    Ends ends;
    std::thread server([&] {
      ends.server =
          greet_as_server(*server_, server_key, server_purpose, soon());
    });
    ends.client = greet_as_client(*client_, client_key, client_purpose, soon());
    server.join();
    return ends;
  }
  Key key_ = make_key();
};
INSTANTIATE_TEST_SUITE_P(All, Greeting, ::testing::Bool(), network_name);

TEST_P(Greeting, HoldersOfTheKeyMeet) {
  Ends ends = greet(key_, key_, "control", "control");
  EXPECT_TRUE(ends.client);
  EXPECT_TRUE(ends.server);
  send(*client_, "after");
  EXPECT_EQ(receive(*server_, 5), "after");
}

TEST_P(Greeting, AnotherKeyIsRefusedOnBothSides) {
  Ends ends = greet(make_key(), key_, "control", "control");
  EXPECT_EQ(ends.client.error().code(), ErrorCode::kPermission);
  EXPECT_EQ(ends.server.error().code(), ErrorCode::kPermission);
  // Both are closed.
  std::byte byte{};
  EXPECT_FALSE(client_->read_all({&byte, 1}, soon()));
  EXPECT_FALSE(server_->read_all({&byte, 1}, soon()));
}

TEST_P(Greeting, AnotherPurposeIsRefused) {
  Ends ends = greet(key_, key_, "control", "events");
  EXPECT_EQ(ends.client.error().code(), ErrorCode::kPermission);
  EXPECT_EQ(ends.server.error().code(), ErrorCode::kPermission);
}

TEST_P(Greeting, AServerWithoutTheKeyIsFoundOut) {
  pair();
  std::thread server([&] {
    receive(*server_, kHelloSize);
    send(*server_, "LSK1" + std::string(32, 'c'));
    receive(*server_, kProofSize);
    send(*server_, "\x01" + std::string(kProofSize, 'p'));
  });
  EXPECT_EQ(
      greet_as_client(*client_, key_, "control", soon()).error().code(),
      ErrorCode::kPermission);
  server.join();
}

// A thief in the middle records a good greeting and plays it again.
TEST_P(Greeting, AReplayIsRefused) {
  pair();
  auto back = network().listen(any()).value();
  auto front = network().connect(back->address(), soon()).value();
  auto real_server = back->accept(soon()).value();
  std::string hello;
  std::string proof;
  std::thread server([&] {
    EXPECT_TRUE(greet_as_server(*real_server, key_, "control", soon()));
  });
  std::thread thief([&] {
    hello = receive(*server_, kHelloSize);
    send(*front, hello);
    send(*server_, receive(*front, kHelloSize));
    proof = receive(*server_, kProofSize);
    send(*front, proof);
    send(*server_, receive(*front, 1 + kProofSize));
  });
  EXPECT_TRUE(greet_as_client(*client_, key_, "control", soon()));
  server.join();
  thief.join();

  auto again = network().connect(back->address(), soon()).value();
  auto target = back->accept(soon()).value();
  send(*again, hello + proof);
  EXPECT_EQ(
      greet_as_server(*target, key_, "control", soon()).error().code(),
      ErrorCode::kPermission);
}

// One that has no key sends the server's own messages back to it.
TEST_P(Greeting, AMirrorIsRefused) {
  pair();
  std::thread mirror([&] {
    send(*client_, "LSK1" + std::string(32, 'm'));
    receive(*client_, kHelloSize);
    send(*client_, std::string(kProofSize, '\0'));
    EXPECT_EQ(
        receive(*client_, 1 + kProofSize), std::string(1 + kProofSize, '\0'))
        << "a refusal carries nothing made with the key";
  });
  EXPECT_EQ(
      greet_as_server(*server_, key_, "control", soon()).error().code(),
      ErrorCode::kPermission);
  mirror.join();
}

TEST_P(Greeting, GarbageIsRefused) {
  pair();
  send(*client_, "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n");
  auto greeted = greet_as_server(*server_, key_, "control", soon());
  EXPECT_EQ(greeted.error().code(), ErrorCode::kPermission);
  EXPECT_NE(
      greeted.error().message().find("does not speak"), std::string::npos);
}

TEST_P(Greeting, SilenceEndsAtTheDeadline) {
  pair();
  send(*client_, "LSK");
  EXPECT_EQ(
      greet_as_server(
          *server_,
          key_,
          "control",
          os::Deadline::after(std::chrono::milliseconds(5)))
          .error()
          .code(),
      ErrorCode::kTimeout);
}

TEST(KeyFile, IsForTheOwnerOnly) {
  std::string name = ::testing::TempDir() + "lockstep-XXXXXX";
  os::Path folder = ::mkdtemp(name.data());
  std::string path = folder / "key";
  Key key = make_key();
  ASSERT_TRUE(write_key_file(path, key));
  EXPECT_EQ(read_key_file(path).value(), key);
  ::chmod(path.c_str(), 0644);
  auto open = read_key_file(path);
  EXPECT_EQ(open.error().code(), ErrorCode::kPermission);
  EXPECT_NE(open.error().fix().find("chmod 600"), std::string::npos);
  ASSERT_TRUE(os::write_private(path, "not a key"));
  EXPECT_EQ(read_key_file(path).error().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(
      read_key_file(folder / "none").error().code(), ErrorCode::kNotFound);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::wire
