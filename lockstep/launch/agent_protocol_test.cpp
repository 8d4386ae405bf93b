#include "lockstep/launch/agent_protocol.h"

#include <gtest/gtest.h>

#include "lockstep/launch/cbor.h"

namespace lockstep::launch {
namespace {

template <class T>
T there_and_back(const AgentMessage& message) {
  const std::string bytes = encode(message);
  auto read = decode_agent_message(bytes);
  EXPECT_TRUE(read.has_value());
  EXPECT_EQ(encode(*read), bytes);
  return std::get<T>(*read);
}

template <class T>
T there_and_back(const HeadMessage& message) {
  const std::string bytes = encode(message);
  auto read = decode_head_message(bytes);
  EXPECT_TRUE(read.has_value());
  EXPECT_EQ(encode(*read), bytes);
  return std::get<T>(*read);
}

TEST(AgentProtocol, CarriesWhatAgentsSay) {
  Join join;
  join.node = 3;
  join.session = "s";
  join.host = "node\xff";
  join.cores = 8;
  join.interface = "eth0";
  join.head_address = "10.0.0.1:1";
  join.time = 1.5;
  const Join joined = there_and_back<Join>(AgentMessage(join));
  EXPECT_EQ(joined.host, join.host);
  EXPECT_EQ(joined.node, 3);
  EXPECT_EQ(joined.time, 1.5);
  const auto bytes = there_and_back<LogBytes>(
      AgentMessage(LogBytes{1, 2, 1ULL << 40, std::string("\0\xff\n", 3)}));
  EXPECT_EQ(bytes.offset, 1ULL << 40);
  EXPECT_EQ(bytes.data, std::string("\0\xff\n", 3));
  EXPECT_EQ(there_and_back<LogRest>(AgentMessage(LogRest{1, -1, 7})).rank, -1);
  EXPECT_EQ(there_and_back<Beat>(AgentMessage(Beat{2.5, 9})).heard, 9);
}

TEST(AgentProtocol, CarriesEveryReport) {
  Reports reports;
  reports.generation = 2;
  reports.first = 100;
  reports.reports.emplace_back(RankStarted{1, 42});
  reports.reports.emplace_back(RankRefused{1, "no such program"});
  RankExited exit;
  exit.rank = 1;
  exit.pid = 42;
  exit.keeper = 41;
  exit.ended = os::Instant(std::chrono::hours(9));
  exit.spoke = os::Instant(std::chrono::hours(7));
  exit.status.signal = 9;
  exit.out_of_memory = true;
  exit.last_lines = {"a", "b"};
  reports.reports.emplace_back(exit);
  wire::Event event{1.5, 1, "n", wire::Phase{"train"}};
  reports.reports.emplace_back(RankEvent{event, wire::to_json(event)});
  reports.reports.emplace_back(RankOutput{1, "line"});
  reports.reports.emplace_back(RankPlace{1, "sleeping", "f\ng", "gdb"});
  reports.reports.emplace_back(NodeIdle{});
  reports.reports.emplace_back(
      NodeLost{"why", os::Instant(std::chrono::hours(8))});
  const NodeNotice notice{"interruption", 1763193011.5, "terminate"};
  reports.reports.emplace_back(notice);
  reports.clock = os::Instant(std::chrono::hours(10));
  const auto got = there_and_back<Reports>(AgentMessage(reports));
  ASSERT_EQ(got.reports.size(), 9);
  EXPECT_EQ(std::get<NodeNotice>(got.reports[8]), notice);
  EXPECT_EQ(got.first, 100);
  const auto& ended = std::get<RankExited>(got.reports[2]);
  EXPECT_TRUE(ended.out_of_memory);
  EXPECT_EQ(ended.keeper, 41);
  EXPECT_EQ(ended.ended, exit.ended);
  EXPECT_EQ(ended.spoke, exit.spoke);
  EXPECT_EQ(
      std::get<NodeLost>(got.reports[7]).since,
      os::Instant(std::chrono::hours(8)));
  EXPECT_EQ(got.clock, reports.clock);
  EXPECT_EQ(ended.last_lines, exit.last_lines);
  const auto& said = std::get<RankEvent>(got.reports[3]);
  EXPECT_EQ(std::get<wire::Phase>(said.event.body).name, "train");
}

TEST(AgentProtocol, CarriesWhatHeadsSay) {
  StartRequest start;
  start.generation = 3;
  start.stop_signal = 10;
  start.orphan_grace = std::chrono::seconds(3);
  RankCommand command;
  command.rank = 5;
  command.argv = {"x", "\xff"};
  command.environment = {{"A", "\x80"}};
  command.directory = "/d";
  command.log = "/l";
  command.events = "/e";
  command.iteration_pattern = "p";
  start.commands.push_back(command);
  const auto got = there_and_back<StartRequest>(HeadMessage(start));
  EXPECT_EQ(got.generation, 3);
  EXPECT_EQ(got.commands.at(0).argv, command.argv);
  EXPECT_EQ(got.commands.at(0).environment, command.environment);
  EXPECT_EQ(got.commands.at(0).events, "/e");
  Welcome welcome;
  welcome.lease = std::chrono::seconds(5);
  welcome.logs = {{0, 10}, {3, 1ULL << 33}};
  EXPECT_EQ(there_and_back<Welcome>(HeadMessage(welcome)).logs, welcome.logs);
  EXPECT_EQ(there_and_back<EndRanks>(HeadMessage(EndRanks{9, {}})).signal, 9);
  EXPECT_EQ(there_and_back<Inspect>(HeadMessage(Inspect{4})).rank, 4);
  EXPECT_EQ(
      there_and_back<Refuse>(HeadMessage(Refuse{"because"})).reason, "because");
  there_and_back<Bye>(HeadMessage(Bye{}));
}

ErrorCode refusal(const nlohmann::json& map) {
  const auto read = decode_head_message(to_cbor(map));
  return read ? ErrorCode::kInternal : read.error().code();
}

TEST(AgentProtocol, RefusesWhatItCannotUse) {
  EXPECT_EQ(refusal({{"type", "end"}}), ErrorCode::kCorrupt);
  EXPECT_EQ(
      refusal({{"type", "end"}, {"signal", 900}, {"grace", 0}}),
      ErrorCode::kCorrupt);
  EXPECT_EQ(
      refusal({{"type", "end"}, {"signal", 9}, {"grace", -1}}),
      ErrorCode::kCorrupt);
  EXPECT_EQ(
      refusal({{"type", "end"}, {"signal", "9"}, {"grace", 0}}),
      ErrorCode::kCorrupt);
  EXPECT_EQ(refusal({{"type", "dance"}}), ErrorCode::kCorrupt);
  EXPECT_EQ(refusal({{"type", 1}}), ErrorCode::kCorrupt);
  // Unknown keys do no harm.
  EXPECT_TRUE(
      decode_head_message(to_cbor({{"type", "bye"}, {"more", 1}})).has_value());
}

TEST(AgentProtocol, RefusesBytesThatAreNoMap) {
  for (const std::string& bytes :
       {std::string(),
        std::string("\x00", 1),
        std::string("\xff"),
        std::string("\x80"),
        std::string("\xbf\xff"),  // of unknown length
        std::string("\xa1\x61"),  // cut short
        std::string("\xbb\xff\xff\xff\xff\xff\xff\xff\xff"),
        std::string("\xa0\xa0"),      // something behind it
        std::string(100000, '\x81'),  // deep
        "\xa1\x61\x61" + std::string(20, '\x81') + "\x80"}) {
    const auto read = decode_agent_message(bytes);
    ASSERT_FALSE(read.has_value());
    EXPECT_EQ(read.error().code(), ErrorCode::kCorrupt);
  }
}

}  // namespace
}  // namespace lockstep::launch
