#include "lockstep/wire/event.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lockstep/os/file.h"

namespace lockstep::wire {
namespace {

using ::testing::HasSubstr;

Event with(EventBody body) {
  return Event{
      .time = 1700000000.25, .rank = 3, .node = "n1", .body = std::move(body)};
}

TEST(Event, WritesEveryKindAsDocumented) {
  std::string head = R"("time":1700000000.25,"rank":3,"node":"n1",)";
  std::pair<EventBody, std::string> cases[] = {
      {Init{
           .program = "lockstep-train dcgan",
           .world_size = 2,
           .seconds = 0.5,
           .facts = {{"device", "cpu"}}},
       R"("program":"lockstep-train dcgan","world_size":2,"seconds":0.5,"facts":{"device":"cpu"}})"},
      {Phase{.name = "train"}, R"("name":"train"})"},
      {Iteration{
           .step = 1,
           .epoch = 0,
           .samples = 16,
           .data = 0.25,
           .compute = 0.5,
           .communication = 0.125,
           .wait = 0.125,
           .total = 1},
       R"("step":1,"epoch":0,"samples":16,"data":0.25,"compute":0.5,"communication":0.125,"wait":0.125,"total":1.0})"},
      {Metric{.step = 5, .epoch = 1, .values = {{"loss", 0.1}}},
       R"("step":5,"epoch":1,"values":{"loss":0.1}})"},
      {Epoch{.epoch = 1, .steps = 10, .samples = 160, .seconds = 2.5},
       R"("epoch":1,"steps":10,"samples":160,"seconds":2.5})"},
      {Checkpoint{
           .step = 10, .path = "a/b", .reason = "best", .seconds = 0.125},
       R"("step":10,"path":"a/b","reason":"best","seconds":0.125})"},
      {Resource{
           .resident_bytes = 1024,
           .cpu = 1.5,
           .gpu_use = 0.5,
           .gpu_memory_bytes = 2048},
       R"("resident_bytes":1024.0,"cpu":1.5,"gpu_use":0.5,"gpu_memory_bytes":2048.0})"},
      {Exit{.code = 1, .signal = 0, .reason = "NaN"},
       R"("code":1,"signal":0,"reason":"NaN"})"},
      {Node{.state = "lost", .detail = "no heartbeat"},
       R"("state":"lost","detail":"no heartbeat"})"},
      {Cost{.dollars = 1.5, .dollars_per_hour = 0.75},
       R"("dollars":1.5,"dollars_per_hour":0.75})"},
      {Decision{.action = "stop", .reason = "budget"},
       R"("action":"stop","reason":"budget"})"},
  };
  EXPECT_EQ(std::size(cases), std::variant_size_v<EventBody>);
  for (const auto& [body, fields] : cases) {
    std::string line = to_json(with(body));
    EXPECT_EQ(
        line,
        R"({"v":1,"kind":")" + std::string(kind(body)) + "\"," + head + fields);
    auto parsed = parse_event(line);
    ASSERT_TRUE(parsed) << parsed.error().to_string();
    EXPECT_EQ(parsed->body.index(), body.index());
    EXPECT_EQ(to_json(*parsed), line);
  }
}

// docs/events.md shows one line of each kind and a row for each field.
TEST(Event, TheDocumentAgrees) {
  std::string text = os::real_files().read(LOCKSTEP_EVENTS_DOCUMENT).value();
  std::istringstream lines(text);
  std::set<std::string> kinds;
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("{")) {
      continue;
    }
    auto event = parse_event(line);
    ASSERT_TRUE(event) << line << event.error().to_string();
    kinds.insert(std::string(kind(event->body)));
    auto json = nlohmann::json::parse(line);
    EXPECT_EQ(nlohmann::json::parse(to_json(*event)), json);
    for (const auto& [key, value] : json.items()) {
      EXPECT_THAT(text, HasSubstr("\n| `" + key + "` |"));
    }
  }
  EXPECT_EQ(kinds.size(), std::variant_size_v<EventBody>);
}

TEST(Event, DoublesReadBackExactly) {
  for (double value :
       {0.1,
        1.0 / 3,
        5e-324,
        1.7976931348623157e308,
        -0.0,
        1700000000.123456789,
        123456789012345680.0}) {
    Event event = with(Metric{.step = 1, .epoch = 0, .values = {{"x", value}}});
    event.time = value;
    Event parsed = parse_event(to_json(event)).value();
    EXPECT_EQ(parsed.time, value);
    EXPECT_EQ(std::signbit(parsed.time), std::signbit(value));
    EXPECT_EQ(std::get<Metric>(parsed.body).values["x"], value);
  }
}

TEST(Event, WhatIsNotANumberIsNull) {
  double infinity = std::numeric_limits<double>::infinity();
  Event event = with(
      Metric{
          .step = 1,
          .epoch = 0,
          .values = {{"a", std::nan("")}, {"b", infinity}, {"c", -infinity}}});
  std::string line = to_json(event);
  EXPECT_THAT(line, HasSubstr(R"("values":{"a":null,"b":null,"c":null})"));
  auto values = std::get<Metric>(parse_event(line).value().body).values;
  EXPECT_TRUE(std::isnan(values["a"]) && std::isnan(values["c"]));
}

TEST(Event, TextThatIsNotUtf8IsStillALine) {
  std::string line =
      to_json(with(Checkpoint{.step = 1, .path = "a\xff\n\"b", .reason = ""}));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(
      std::get<Checkpoint>(parse_event(line).value().body).path,
      "a\xef\xbf\xbd\n\"b");
}

TEST(Event, IgnoresTheUnknownAndKeepsDefaults) {
  Event event =
      parse_event(R"( {"later":[1,{}],"kind":"init","v":1} )").value();
  EXPECT_EQ(event.rank, -1);
  EXPECT_EQ(std::get<Init>(event.body).world_size, 1);
}

TEST(Event, SaysWhatIsWrong) {
  std::pair<std::string, std::string> cases[] = {
      {"", "not JSON"},
      {"{", "not JSON"},
      {"hello", "not JSON"},
      {"{} x", "not JSON"},
      {"[1]", "not a JSON object"},
      {"{}", "no version"},
      {R"({"v":2,"kind":"init"})", "version 2 is newer than 1"},
      {R"({"v":0,"kind":"init"})", "no version"},
      {R"({"v":"1","kind":"init"})", "'v' must be a whole number"},
      {R"({"v":1})", "unknown kind"},
      {R"({"v":1,"kind":"inti"})", "unknown kind \"inti\"; accepted: init"},
      {R"({"v":1,"kind":7})", "'kind' must be a string, found 7"},
      {R"({"v":1,"kind":"phase","name":[1]})", "'name' must be a string"},
      {R"({"v":1,"kind":"init","time":"x"})", "'time' must be a number"},
      {R"({"v":1,"kind":"init","rank":1.5})", "'rank' must be a whole number"},
      {R"({"v":1,"kind":"init","rank":4294967296})", "'rank' must be a whole"},
      {R"({"v":1,"kind":"epoch","steps":1e300})", "'steps' must be a whole"},
      {R"({"v":1,"kind":"epoch","steps":18446744073709551615})",
       "'steps' must be a whole number in range"},
      {R"({"v":1,"kind":"metric","values":{"a":"b"}})",
       "'values' must be an object of numbers"},
      {R"({"v":1,"kind":"init","facts":{"a":1}})",
       "'facts' must be an object of strings"},
      {R"({"v":1,"kind":"init","time":1e999})", "not JSON"},
      {"{\"v\":1,\"kind\":\"\xff\"}", "not JSON"},
      {std::string(2 << 20, ' '), "at most 1048576"},
  };
  for (const auto& [line, message] : cases) {
    auto parsed = parse_event(line);
    ASSERT_FALSE(parsed) << line;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(parsed.error().message(), HasSubstr(message)) << line;
  }
}

TEST(Event, DeepNestingDoesNoHarm) {
  EXPECT_FALSE(parse_event(std::string(1 << 20, '[')));
  std::string deep(400000, '[');
  std::string line = R"({"v":1,"kind":"init","x":)" + deep +
                     std::string(deep.size(), ']') + "}";
  EXPECT_TRUE(parse_event(line));
}

// A copy or a text of such a value would need a stack as deep as it is.
TEST(Event, DeepNestingInAnyPlaceDoesNoHarm) {
  const size_t depth = 200'000;
  const std::string lists = std::string(depth, '[') + std::string(depth, ']');
  std::string objects;
  for (size_t i = 0; i < depth / 2; ++i) {
    objects += "{\"a\":";
  }
  objects += "1" + std::string(depth / 2, '}');
  for (const auto& [deep, shown] :
       {std::pair(lists, "[...]"), std::pair(objects, "{...}")}) {
    const auto problem = [](const std::string& line) {
      const auto parsed = parse_event(line);
      EXPECT_FALSE(parsed);
      return parsed ? "" : parsed.error().message();
    };
    EXPECT_THAT(
        problem(R"({"v":1,"kind":"phase","name":)" + deep + "}"),
        HasSubstr(std::string("'name' must be a string, found ") + shown));
    EXPECT_THAT(
        problem(R"({"v":1,"kind":)" + deep + "}"),
        HasSubstr(std::string("'kind' must be a string, found ") + shown));
    EXPECT_THAT(
        problem(R"({"v":1,"kind":"metric","values":{"a":)" + deep + "}}"),
        HasSubstr("'values' must be an object of numbers, found {...}"));
    // Others come after it.
    EXPECT_TRUE(parse_event(
        R"({"x":)" + deep + R"(,"v":1,"y":2,"kind":"phase","name":"train"})"));
  }
}

TEST(Event, WhatIsFlatIsShown) {
  const auto parsed =
      parse_event(R"({"v":1,"kind":"metric","values":{"a":"b"}})");
  ASSERT_FALSE(parsed);
  EXPECT_THAT(parsed.error().message(), HasSubstr(R"(found {"a":"b"})"));
}

TEST(Event, OnlyIterationsAndResourcesMayBeDropped) {
  EXPECT_TRUE(may_drop(Iteration{}));
  EXPECT_TRUE(may_drop(Resource{}));
  EXPECT_FALSE(may_drop(Init{}));
  EXPECT_FALSE(may_drop(Metric{}));
  EXPECT_FALSE(may_drop(Exit{}));
}

}  // namespace
}  // namespace lockstep::wire
