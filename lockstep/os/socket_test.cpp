#include "lockstep/os/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include "lockstep/os/descriptor.h"
#include "lockstep/os/file.h"

namespace lockstep::os {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Deadline soon() {
  return Deadline::after(seconds(60));
}
Deadline at_once() {
  return Deadline::after(milliseconds(1));
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string read_text(Connection& connection, size_t size) {
  std::string text(size, '\0');
  auto read = connection.read_all(
      std::as_writable_bytes(std::span(text.data(), size)), soon());
  return read ? text : read.error().to_string();
}

TEST(Address, ReadsAndPrints) {
  for (const char* text :
       {"10.0.0.1:29500",
        "localhost:0",
        "[::1]:80",
        "unix:/run/x.sock",
        "unix:@x"}) {
    EXPECT_EQ(parse_address(text).value().to_string(), text);
  }
  EXPECT_EQ(parse_address("[::1]:80").value().host, "::1");
  EXPECT_EQ(parse_address("unix:@x").value().unix_path, "@x");
}

TEST(Address, RefusesTheRest) {
  for (std::string text :
       {"",
        "host",
        ":80",
        "host:",
        "host:x",
        "host:65536",
        "host:-1",
        "host:80x",
        "::1:80",
        "unix:",
        "unix:@"}) {
    auto parsed = parse_address(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kInvalidInput);
    EXPECT_NE(parsed.error().message().find("HOST:PORT"), std::string::npos);
  }
  EXPECT_FALSE(parse_address("unix:/" + std::string(200, 'x')));
}

// The same promises for every kind of network.
struct Kind {
  const char* name;
  const char* address;
  bool fake;
};

class Networks : public ::testing::TestWithParam<Kind> {
 protected:
  Networks() {
    if (GetParam().fake) {
      fake_ = make_fake_network();
    }
    std::string text = GetParam().address;
    if (text == "unix:FILE") {
      std::string folder = ::testing::TempDir() + "lockstep-XXXXXX";
      folder_ = ::mkdtemp(folder.data());
      text = "unix:" + folder_.string() + "/s";
    } else if (text == "unix:@NAME") {
      text = "unix:@lockstep-test-" + std::to_string(::getpid());
    }
    listener_ = network().listen(parse_address(text).value()).value();
  }
  ~Networks() override {
    listener_.reset();
    if (!folder_.empty()) {
      std::filesystem::remove_all(folder_);
    }
  }
  Network& network() { return fake_ ? *fake_ : real_network(); }
  void pair() {
    client_ = network().connect(listener_->address(), soon()).value();
    server_ = listener_->accept(soon()).value();
  }
  std::unique_ptr<Network> fake_;
  Path folder_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<Connection> client_;
  std::unique_ptr<Connection> server_;
};

INSTANTIATE_TEST_SUITE_P(
    All,
    Networks,
    ::testing::Values(
        Kind{"tcp", "127.0.0.1:0", false},
        Kind{"name", "localhost:0", false},
        Kind{"file", "unix:FILE", false},
        Kind{"abstract", "unix:@NAME", false},
        Kind{"fake", "10.0.0.1:0", true}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(Networks, CarryBytesBothWays) {
  pair();
  ASSERT_TRUE(client_->write_all(bytes_of("hello"), soon()));
  EXPECT_EQ(read_text(*server_, 5), "hello");
  ASSERT_TRUE(server_->write_all(bytes_of("you"), soon()));
  EXPECT_EQ(read_text(*client_, 3), "you");
  EXPECT_FALSE(client_->peer().empty());
}

TEST_P(Networks, CarryMoreThanTheirBuffers) {
  pair();
  std::string sent(8 << 20, '\0');
  for (size_t i = 0; i < sent.size(); ++i) {
    sent[i] = static_cast<char>(i * 7 + i / 251);
  }
  std::thread writer([&] {
    EXPECT_TRUE(client_->write_all(bytes_of(sent), soon()));
    client_->close();
  });
  EXPECT_TRUE(read_text(*server_, sent.size()) == sent);
  std::byte rest{};
  EXPECT_EQ(server_->read_some({&rest, 1}, soon()).value(), 0U);
  writer.join();
}

TEST_P(Networks, KeepDeadlines) {
  EXPECT_EQ(listener_->accept(at_once()).error().code(), ErrorCode::kTimeout);
  pair();
  std::byte byte{};
  EXPECT_EQ(
      client_->read_some({&byte, 1}, at_once()).error().code(),
      ErrorCode::kTimeout);
  // Nobody reads: the buffers fill and the writer gives up.
  std::string much(64 << 20, 'x');
  EXPECT_EQ(
      client_->write_all(bytes_of(much), Deadline::after(milliseconds(50)))
          .error()
          .code(),
      ErrorCode::kTimeout);
}

TEST_P(Networks, TellThatThePeerIsGone) {
  pair();
  server_.reset();
  std::byte byte{};
  EXPECT_EQ(client_->read_some({&byte, 1}, soon()).value(), 0U);
  EXPECT_EQ(
      client_->read_all({&byte, 1}, soon()).error().code(),
      ErrorCode::kUnavailable);
  // The first bytes may still be taken by the system; the rest may not.
  Result<void> written;
  for (int i = 0; i < 1000 && written; ++i) {
    written = client_->write_all(bytes_of("x"), soon());
  }
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code(), ErrorCode::kUnavailable);
}

TEST_P(Networks, CloseFreesReaderAndAcceptor) {
  pair();
  std::thread reader([&] {
    std::byte byte{};
    EXPECT_EQ(
        client_->read_some({&byte, 1}, Deadline::never()).error().code(),
        ErrorCode::kAborted);
  });
  std::thread acceptor([&] {
    EXPECT_EQ(
        listener_->accept(Deadline::never()).error().code(),
        ErrorCode::kAborted);
  });
  client_->close();
  listener_->close();
  reader.join();
  acceptor.join();
  EXPECT_EQ(
      network().connect(listener_->address(), soon()).error().code(),
      ErrorCode::kUnavailable);
}

TEST_P(Networks, CloseFreesWriter) {
  pair();
  std::string much(64 << 20, 'x');
  std::thread writer([&] {
    EXPECT_EQ(
        client_->write_all(bytes_of(much), Deadline::never()).error().code(),
        ErrorCode::kAborted);
  });
  EXPECT_EQ(read_text(*server_, 3), "xxx");
  client_->close();
  writer.join();
}

TEST_P(Networks, RefuseAnAddressInUse) {
  auto second = network().listen(listener_->address());
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(
      second.error().message().find(listener_->address().to_string()),
      std::string::npos);
}

TEST(RealNetwork, SaysWhatItCannotResolve) {
  auto connection = real_network().connect(
      parse_address("no-such-host.invalid:1").value(), soon());
  ASSERT_FALSE(connection);
  EXPECT_NE(
      connection.error().message().find("no-such-host.invalid"),
      std::string::npos);
}

TEST(RealNetwork, TakesOverASocketFileThatNobodyServes) {
  std::string name = ::testing::TempDir() + "lockstep-XXXXXX";
  Path folder = ::mkdtemp(name.data());
  Address address{.host = "", .port = 0, .unix_path = folder / "s"};
  auto first = real_network().listen(address).value();
  // As after kill -9: the file stays, nobody listens.
  std::filesystem::rename(folder / "s", folder / "kept");
  first.reset();
  std::filesystem::rename(folder / "kept", folder / "s");
  auto second = real_network().listen(address);
  EXPECT_TRUE(second) << second.error().to_string();
  second->reset();
  EXPECT_FALSE(std::filesystem::exists(folder / "s"));
  std::filesystem::remove_all(folder);
}

TEST(RealNetwork, PassesDescriptors) {
  Address address =
      parse_address("unix:@lockstep-fd-" + std::to_string(::getpid())).value();
  auto listener = real_network().listen(address).value();
  auto client = real_network().connect(address, soon()).value();
  auto server = listener->accept(soon()).value();
  EXPECT_EQ(
      receive_descriptor(*server, at_once()).error().code(),
      ErrorCode::kTimeout);
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Descriptor reader(ends[0]);
  Descriptor writer(ends[1]);
  ASSERT_TRUE(send_descriptor(*client, writer.get()));
  Descriptor received(receive_descriptor(*server, soon()).value());
  EXPECT_TRUE(::fcntl(received.get(), F_GETFD) & FD_CLOEXEC);
  ASSERT_EQ(::write(received.get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 1);
  // A byte without a descriptor is not one.
  ASSERT_TRUE(client->write_all(bytes_of("d"), soon()));
  EXPECT_EQ(
      receive_descriptor(*server, soon()).error().code(), ErrorCode::kCorrupt);
  client.reset();
  EXPECT_EQ(
      receive_descriptor(*server, soon()).error().code(),
      ErrorCode::kUnavailable);
}

TEST(FakeNetwork, CutEndsEverything) {
  auto network = make_fake_network();
  auto listener = network->listen(Address{"a", 0, ""}).value();
  auto client = network->connect(listener->address(), soon()).value();
  auto server = listener->accept(soon()).value();
  std::thread reader([&] {
    std::byte byte{};
    EXPECT_EQ(
        server->read_some({&byte, 1}, Deadline::never()).error().code(),
        ErrorCode::kUnavailable);
  });
  cut(*network);
  reader.join();
  EXPECT_EQ(
      client->write_all(bytes_of("x"), soon()).error().code(),
      ErrorCode::kUnavailable);
  EXPECT_EQ(
      network->connect(listener->address(), soon()).error().code(),
      ErrorCode::kUnavailable);
}

TEST(FakeNetwork, HasNoDescriptors) {
  auto network = make_fake_network();
  auto listener = network->listen(Address{"a", 0, ""}).value();
  auto client = network->connect(listener->address(), soon()).value();
  EXPECT_EQ(
      send_descriptor(*client, 0).error().code(), ErrorCode::kInvalidInput);
}

}  // namespace
}  // namespace lockstep::os
