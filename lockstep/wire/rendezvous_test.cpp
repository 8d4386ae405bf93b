#include "lockstep/wire/rendezvous.h"

#include <thread>
#include <vector>

#include "lockstep/wire/frame.h"
#include "lockstep/wire/handshake.h"
#include "lockstep/wire/network_kinds_test.h"
#include "lockstep/wire/rendezvous_protocol.h"

namespace lockstep::wire {
namespace {

using std::chrono::milliseconds;

class Meeting : public OverNetworks {
 protected:
  std::unique_ptr<RendezvousServer> serve() {
    return RendezvousServer::start(network(), any(), key_).value();
  }
  std::unique_ptr<Rendezvous> join(const RendezvousServer& server) {
    return connect_rendezvous(network(), server.address(), key_, soon())
        .value();
  }
  Key key_ = make_key();
};
INSTANTIATE_TEST_SUITE_P(All, Meeting, ::testing::Bool(), network_name);

TEST_P(Meeting, SharesATable) {
  auto server = serve();
  auto first = join(*server);
  auto second = join(*server);
  std::string value("a\0b", 3);
  ASSERT_TRUE(first->put("key", value));
  EXPECT_EQ(second->get("key", soon()).value(), value);
  EXPECT_EQ(server->table().get("key", soon()).value(), value);
  ASSERT_TRUE(second->put("key", ""));
  EXPECT_EQ(first->get("key", soon()).value(), "") << "the last put wins";
  ASSERT_TRUE(server->table().put("own", "1"));
  EXPECT_EQ(first->get("own", soon()).value(), "1");
}

TEST_P(Meeting, GetWaitsForPut) {
  auto server = serve();
  auto client = join(*server);
  std::thread late([&] {
    auto other = join(*server);
    EXPECT_TRUE(other->put("late", "here"));
  });
  EXPECT_EQ(client->get("late", soon()).value(), "here");
  late.join();
}

// One client, two threads: the put must not wait behind the get.
TEST_P(Meeting, AWaitingGetLeavesRoomForPuts) {
  auto server = serve();
  auto client = join(*server);
  std::thread getter([&] { EXPECT_EQ(client->get("x", soon()).value(), "1"); });
  EXPECT_TRUE(client->put("x", "1"));
  getter.join();
}

TEST_P(Meeting, GetGivesUpAndNamesTheKey) {
  auto server = serve();
  auto client = join(*server);
  auto value = client->get("rank/7", os::Deadline::after(milliseconds(5)));
  ASSERT_FALSE(value);
  EXPECT_EQ(value.error().code(), ErrorCode::kTimeout);
  EXPECT_NE(value.error().message().find("rank/7"), std::string::npos);
}

TEST_P(Meeting, ClientMayComeFirst) {
  // An address that is free: taken, noted and given up again.
  os::Address address = network().listen(any()).value()->address();
  std::unique_ptr<RendezvousServer> server;
  std::thread late([&] {
    server = RendezvousServer::start(network(), address, key_).value();
  });
  auto client = connect_rendezvous(network(), address, key_, soon());
  late.join();
  ASSERT_TRUE(client) << client.error().to_string();
  EXPECT_TRUE((*client)->put("a", "b"));
}

TEST_P(Meeting, NobodyThere) {
  os::Address address = network().listen(any()).value()->address();
  auto client = connect_rendezvous(
      network(), address, key_, os::Deadline::after(milliseconds(20)));
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(
      client.error().to_string().find(address.to_string()), std::string::npos);
}

TEST_P(Meeting, AWrongKeyIsToldAtOnce) {
  auto server = serve();
  auto client = connect_rendezvous(
      network(), server->address(), make_key(), os::Deadline::never());
  ASSERT_FALSE(client);
  EXPECT_EQ(client.error().code(), ErrorCode::kPermission);
}

TEST_P(Meeting, TooLargeAValueIsRefusedHere) {
  auto server = serve();
  auto client = join(*server);
  EXPECT_EQ(
      client->put("k", std::string(2 << 20, 'x')).error().code(),
      ErrorCode::kInvalidInput);
  EXPECT_TRUE(client->put("k", "small"));
}

TEST_P(Meeting, GarbageEndsOnlyItsOwnConnection) {
  auto server = serve();
  auto client = join(*server);
  auto raw = network().connect(server->address(), soon()).value();
  send(*raw, std::string(100, '\xff'));
  // Greeted, then garbage: an unknown message and one over the limit.
  for (std::string bytes :
       {std::string("\x03\0\0\0xyz", 7), std::string("\xff\xff\xff\x7f", 4)}) {
    auto keyed = network().connect(server->address(), soon()).value();
    ASSERT_TRUE(greet_as_client(*keyed, key_, kRendezvousPurpose, soon()));
    send(*keyed, bytes);
    std::byte byte{};
    EXPECT_EQ(
        keyed->read_all({&byte, 1}, soon()).error().code(),
        ErrorCode::kUnavailable);
  }
  EXPECT_TRUE(client->put("still", "here"));
  EXPECT_EQ(client->get("still", soon()).value(), "here");
}

// More than the server holds at a time: the oldest strangers give way.
TEST_P(Meeting, HalfOpenFloodDisturbsNobody) {
  auto server = serve();
  std::vector<std::unique_ptr<os::Connection>> flood;
  for (int i = 0; i < 200; ++i) {
    flood.push_back(network().connect(server->address(), soon()).value());
    if (i % 2 == 0) {
      send(*flood.back(), "LSK");
    }
  }
  auto client = join(*server);
  for (int i = 0; i < 200; ++i) {
    flood.push_back(network().connect(server->address(), soon()).value());
    std::string key = std::to_string(i);
    ASSERT_TRUE(client->put(key, key));
    ASSERT_EQ(client->get(key, soon()).value(), key);
  }
  auto second = join(*server);
  EXPECT_EQ(second->get("199", soon()).value(), "199");
}

TEST_P(Meeting, ManyClientsAtOnce) {
  auto server = serve();
  constexpr int kClients = 16;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kClients; ++rank) {
    threads.emplace_back([&, rank] {
      auto client = join(*server);
      EXPECT_TRUE(
          client->put("rank/" + std::to_string(rank), std::to_string(rank)));
      for (int other = 0; other < kClients; ++other) {
        EXPECT_EQ(
            client->get("rank/" + std::to_string(other), soon()).value(),
            std::to_string(other));
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_P(Meeting, AnEndedServerFreesItsWaiters) {
  auto server = serve();
  auto client = join(*server);
  ASSERT_TRUE(client->put("ready", "1"));
  std::thread waiter([&] {
    EXPECT_FALSE(client->get("never", os::Deadline::after(milliseconds(200))));
  });
  server.reset();
  waiter.join();
}

TEST_P(Meeting, ANewServerAtTheSameAddressIsFound) {
  auto server = serve();
  os::Address address = server->address();
  auto client = join(*server);
  ASSERT_TRUE(client->put("a", "1"));
  server.reset();
  auto again = RendezvousServer::start(network(), address, key_);
  ASSERT_TRUE(again) << again.error().to_string();
  EXPECT_TRUE(client->put("a", "2"));
  EXPECT_EQ((*again)->table().get("a", soon()).value(), "2");
}

TEST_P(Meeting, ALostServerIsNotWaitedForUntilTheDeadline) {
  auto server = serve();
  auto client =
      connect_rendezvous(
          network(), server->address(), key_, soon(), milliseconds(50))
          .value();
  ASSERT_TRUE(client->put("a", "1"));
  server.reset();
  const auto got = client->get("b", os::Deadline::never());
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code(), ErrorCode::kAborted);
  EXPECT_NE(got.error().to_string().find("is gone"), std::string::npos);
  EXPECT_FALSE(client->put("a", "2"));
}

TEST_P(Meeting, ADrainedServerWaitsForItsClients) {
  auto server = serve();
  EXPECT_TRUE(server->drain(os::Deadline::never())) << "nobody came";
  auto client = join(*server);
  ASSERT_TRUE(client->put("reason", "x"));
  EXPECT_FALSE(server->drain(os::Deadline::after(milliseconds(20))));
  std::thread leaving([&] {
    EXPECT_EQ(client->get("reason", soon()).value(), "x");
    client.reset();
  });
  EXPECT_TRUE(server->drain(os::Deadline::never()));
  leaving.join();
}

TEST(LocalRendezvous, SharesATable) {
  auto table = make_local_rendezvous();
  std::thread late([&] { EXPECT_TRUE(table->put("a", "b")); });
  EXPECT_EQ(
      table->get("a", os::Deadline::after(std::chrono::minutes(1))).value(),
      "b");
  late.join();
  EXPECT_EQ(
      table->get("c", os::Deadline::after(milliseconds(1))).error().code(),
      ErrorCode::kTimeout);
}

TEST(RendezvousProtocol, ReadsBackWhatItWrites) {
  Request put{.is_put = true, .key = "k", .value = "v\0w", .patience = {}};
  Request parsed = parse_request(format_request(put)).value();
  EXPECT_TRUE(parsed.is_put);
  EXPECT_EQ(parsed.key, put.key);
  EXPECT_EQ(parsed.value, put.value);
  Request get{
      .is_put = false, .key = "k", .value = "", .patience = milliseconds(7)};
  parsed = parse_request(format_request(get)).value();
  EXPECT_FALSE(parsed.is_put);
  EXPECT_EQ(parsed.patience, milliseconds(7));
  EXPECT_FALSE(parse_request(""));
  EXPECT_FALSE(parse_request("P\xff\xff\xff\xffk"));
  EXPECT_FALSE(parse_request("X\x01\x01\x01\x01k"));
  EXPECT_FALSE(parse_reply(""));
  EXPECT_FALSE(parse_reply("Nx"));
  EXPECT_EQ(parse_reply("Yvalue").value().value, "value");
}

}  // namespace
}  // namespace lockstep::wire
