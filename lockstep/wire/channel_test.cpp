#include "lockstep/wire/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "lockstep/wire/frame.h"

namespace lockstep::wire {
namespace {

constexpr size_t kHelloSize = 36;
constexpr size_t kProofSize = 32;
constexpr size_t kAnswerSize = 33;

struct Pair {
  os::Descriptor left, right;
  Pair() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    left = os::Descriptor(ends[0]);
    right = os::Descriptor(ends[1]);
  }
};

void put(int descriptor, std::string_view text) {
  EXPECT_EQ(
      ::write(descriptor, text.data(), text.size()),
      static_cast<ssize_t>(text.size()));
}

// All that is there now.
std::string get(int descriptor) {
  std::string text;
  char block[4096];
  ssize_t size = 0;
  while ((size = ::recv(descriptor, block, sizeof block, MSG_DONTWAIT)) > 0) {
    text.append(block, static_cast<size_t>(size));
  }
  return text;
}

// A client and a server with one in the middle, who sees and sends all bytes.
class ChannelTest : public ::testing::Test {
 protected:
  void SetUp() override { open(key_, key_); }
  void open(const Key& client_key, const Key& server_key) {
    Pair up;
    Pair down;
    client_ = Channel::make(
        std::move(up.left), ChannelRole::kClient, client_key, "test");
    server_ = Channel::make(
        std::move(down.left), ChannelRole::kServer, server_key, "test");
    near_client_ = std::move(up.right);
    near_server_ = std::move(down.right);
  }
  // Lets both ends work and carries bytes until nothing moves.
  void carry() {
    while (true) {
      pump(*client_, at_client_, client_result_);
      const std::string up = get(near_client_.get());
      to_server_ += up;
      if (!up.empty()) {
        put(near_server_.get(), up);
      }
      pump(*server_, at_server_, server_result_);
      const std::string down = get(near_server_.get());
      if (!down.empty()) {
        put(near_client_.get(), down);
      }
      if (up.empty() && down.empty()) {
        return;
      }
    }
  }
  static void pump(
      Channel& channel,
      std::vector<std::string>& messages,
      Result<void>& result) {
    if (result) {
      result = channel.pump(messages);
    }
  }
  // What the client sends now, kept from the server.
  std::string steal() { return get(near_client_.get()); }
  void to_server(std::string_view text) {
    put(near_server_.get(), text);
    pump(*server_, at_server_, server_result_);
  }
  ErrorCode server_error() const {
    return server_result_ ? ErrorCode::kInternal
                          : server_result_.error().code();
  }

  Key key_ = make_key();
  std::unique_ptr<Channel> client_, server_;
  os::Descriptor near_client_, near_server_;
  std::vector<std::string> at_client_, at_server_;
  Result<void> client_result_, server_result_;
  std::string to_server_;
};

TEST_F(ChannelTest, CarriesMessagesBothWaysInOrder) {
  ASSERT_TRUE(client_->send("early").has_value());
  EXPECT_EQ(client_->queued(), kHelloSize + 5);
  carry();
  ASSERT_TRUE(client_->ready() && server_->ready());
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(client_->send("up " + std::to_string(i)).has_value());
    ASSERT_TRUE(server_->send("down " + std::to_string(i)).has_value());
  }
  ASSERT_TRUE(client_->send("").has_value());
  carry();
  ASSERT_EQ(at_server_.size(), 102);
  EXPECT_EQ(at_server_[0], "early");
  EXPECT_EQ(at_server_[100], "up 99");
  EXPECT_EQ(at_server_[101], "");
  ASSERT_EQ(at_client_.size(), 100);
  EXPECT_EQ(at_client_[99], "down 99");
  EXPECT_EQ(client_->queued(), 0);
  EXPECT_FALSE(client_->wants_to_write());
}

TEST_F(ChannelTest, TakesBytesOneByOne) {
  ASSERT_TRUE(client_->send("one").has_value());
  carry();
  ASSERT_TRUE(client_->send("two").has_value());
  for (const char byte : steal()) {
    to_server(std::string_view(&byte, 1));
  }
  EXPECT_EQ(at_server_, (std::vector<std::string>{"one", "two"}));
}

TEST_F(ChannelTest, RefusesARepeatedMessage) {
  carry();
  ASSERT_TRUE(client_->send("pay 1").has_value());
  const std::string frame = steal();
  to_server(frame);
  to_server(frame);
  EXPECT_EQ(at_server_, std::vector<std::string>{"pay 1"});
  EXPECT_EQ(server_error(), ErrorCode::kPermission);
  EXPECT_FALSE(server_->send("x").has_value()) << "it failed for good";
}

TEST_F(ChannelTest, RefusesAnotherOrder) {
  carry();
  ASSERT_TRUE(client_->send("first").has_value());
  const std::string first = steal();
  ASSERT_TRUE(client_->send("second").has_value());
  to_server(steal() + first);
  EXPECT_TRUE(at_server_.empty());
  EXPECT_EQ(server_error(), ErrorCode::kPermission);
}

TEST_F(ChannelTest, RefusesAMessageWithoutItsPredecessor) {
  carry();
  ASSERT_TRUE(client_->send("first").has_value());
  steal();
  ASSERT_TRUE(client_->send("second").has_value());
  to_server(steal());
  EXPECT_EQ(server_error(), ErrorCode::kPermission);
}

TEST_F(ChannelTest, RefusesEveryFlippedBit) {
  for (size_t bit = 0; bit < (4 + 3 + 16) * 8; ++bit) {
    open(key_, key_);
    server_result_ = {};
    carry();
    at_server_.clear();
    ASSERT_TRUE(client_->send("abc").has_value());
    std::string frame = steal();
    frame[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    to_server(frame);
    // A length that grew waits for more, and what comes then gives it away.
    ASSERT_TRUE(at_server_.empty()) << bit;
    if (server_result_) {
      ASSERT_LT(bit, 32) << bit;
    } else {
      ASSERT_EQ(server_error(), ErrorCode::kPermission) << bit;
    }
  }
}

TEST_F(ChannelTest, RefusesAnotherKeyOnBothSides) {
  open(make_key(), key_);
  ASSERT_TRUE(client_->send("secret").has_value());
  carry();
  EXPECT_EQ(server_error(), ErrorCode::kPermission);
  ASSERT_FALSE(client_result_.has_value());
  EXPECT_EQ(client_result_.error().code(), ErrorCode::kPermission);
  EXPECT_NE(
      client_result_.error().message().find("another run"), std::string::npos);
  EXPECT_EQ(to_server_.find("secret"), std::string::npos);
  EXPECT_TRUE(at_server_.empty());
}

TEST_F(ChannelTest, RefusesAReplayedConversation) {
  ASSERT_TRUE(client_->send("pay 1").has_value());
  carry();
  const std::string recorded = to_server_;
  open(key_, key_);
  at_server_.clear();
  to_server(recorded);
  EXPECT_TRUE(at_server_.empty());
  EXPECT_EQ(server_error(), ErrorCode::kPermission);
}

// One that has no key sends a frame of the server back to it.
TEST_F(ChannelTest, RefusesAMirror) {
  carry();
  ASSERT_TRUE(server_->send("hello").has_value());
  to_server(get(near_server_.get()));
  EXPECT_TRUE(at_server_.empty());
  EXPECT_EQ(server_error(), ErrorCode::kPermission);
}

TEST_F(ChannelTest, RefusesGarbageAtItsFirstBytes) {
  to_server("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(server_error(), ErrorCode::kPermission);
  EXPECT_NE(
      server_result_.error().message().find("does not speak"),
      std::string::npos);
  open(key_, key_);
  server_result_ = {};
  to_server("x");
  EXPECT_EQ(server_error(), ErrorCode::kPermission);
}

TEST_F(ChannelTest, RefusesAnOversizeLengthBeforeItComes) {
  carry();
  to_server(std::string("\x01\x00\x00\x01", 4));  // 16 MiB + 1
  EXPECT_EQ(server_error(), ErrorCode::kPermission);
  EXPECT_EQ(
      client_->send(std::string(kMaxFrame + 1, 'x')).error().code(),
      ErrorCode::kInvalidInput);
  EXPECT_TRUE(client_->send("fine").has_value());
}

TEST_F(ChannelTest, WaitsInHalfAHandshakeAndSeesThePeerGo) {
  to_server("LSK1" + std::string(kHelloSize - 4, 'c'));
  EXPECT_EQ(get(near_server_.get()).size(), kHelloSize);
  to_server(std::string(kProofSize - 1, 'p'));
  EXPECT_TRUE(server_result_.has_value());
  EXPECT_FALSE(server_->ready());
  near_server_.reset();
  pump(*server_, at_server_, server_result_);
  EXPECT_EQ(server_error(), ErrorCode::kUnavailable);
}

TEST_F(ChannelTest, AServerWithoutTheKeyIsFoundOut) {
  pump(*client_, at_client_, client_result_);
  EXPECT_EQ(steal().size(), kHelloSize);
  put(near_client_.get(), "LSK1" + std::string(kHelloSize - 4, 'c'));
  pump(*client_, at_client_, client_result_);
  EXPECT_EQ(steal().size(), kProofSize);
  put(near_client_.get(), "\x01" + std::string(kAnswerSize - 1, 'p'));
  pump(*client_, at_client_, client_result_);
  ASSERT_FALSE(client_result_.has_value());
  EXPECT_EQ(client_result_.error().code(), ErrorCode::kPermission);
}

TEST_F(ChannelTest, TellsWhatCameBeforeTheEnd) {
  carry();
  ASSERT_TRUE(client_->send("last words").has_value());
  put(near_server_.get(), steal());
  near_server_.reset();
  pump(*server_, at_server_, server_result_);
  EXPECT_EQ(at_server_, std::vector<std::string>{"last words"});
  EXPECT_EQ(server_error(), ErrorCode::kUnavailable);
}

// Large messages to a reader that takes them bit by bit: the sender sees how
// much waits, nobody blocks, all comes.
TEST(ChannelFlow, CarriesLargeMessagesToASlowReader) {
  const Key key = make_key();
  Pair pair;
  const auto client =
      Channel::make(std::move(pair.left), ChannelRole::kClient, key, "test");
  const auto server =
      Channel::make(std::move(pair.right), ChannelRole::kServer, key, "test");
  std::vector<std::string> got;
  std::vector<std::string> none;
  while (!client->ready()) {
    ASSERT_TRUE(client->pump(none).has_value());
    ASSERT_TRUE(server->pump(got).has_value());
  }
  std::string large(kMaxFrame, 'x');
  large.back() = 'y';
  ASSERT_TRUE(client->send(large).has_value());
  ASSERT_TRUE(client->send("small").has_value());
  EXPECT_GT(client->queued(), kMaxFrame / 2);
  EXPECT_TRUE(client->wants_to_write());
  for (int turn = 0; got.size() < 2 && turn < 100000; ++turn) {
    ASSERT_TRUE(client->pump(none).has_value());
    ASSERT_TRUE(server->pump(got).has_value());
  }
  ASSERT_EQ(got.size(), 2);
  EXPECT_TRUE(got[0] == large);
  EXPECT_EQ(got[1], "small");
  EXPECT_EQ(client->queued(), 0);
}

}  // namespace
}  // namespace lockstep::wire
