#include "lockstep/launch/head.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/id.h"

namespace lockstep::launch {
namespace {

HeadSpec sample() {
  HeadSpec spec;
  spec.launcher = "ssh";
  spec.run_id = "demo-20261115-113000-abc123";
  spec.name = "demo";
  spec.runs_dir = "/var/u/.cache/lockstep/runs";
  spec.job = "name: demo\nrun: [\"true\"]\n";
  spec.secrets = {{"TOKEN", "x y\"z"}};
  spec.key = to_hex(make_key());
  spec.nodes.resize(2);
  spec.nodes[0].host = "a";
  spec.nodes[0].procs = 2;
  spec.nodes[0].workdir = "/w";
  spec.nodes[0].folder = "/n/0";
  spec.nodes[0].environment = {{"PATH", "/bin"}};
  spec.nodes[1].host = "user@b";
  spec.nodes[1].envs = {{"K", "V"}};
  spec.nodes[1].trainer = "/s/bin/lockstep-train";
  spec.command = "lockstep run --hosts a,b -- true";
  spec.program = "true";
  spec.retries = 3;
  spec.timeout = std::chrono::seconds(90);
  spec.price_per_hour = Money::from_dollars(0.25);
  spec.price_source = "--price";
  spec.before = std::chrono::seconds(40);
  spec.terms = {
      std::chrono::seconds(120),
      std::chrono::hours(2),
      Money::from_dollars(0.09)};
  spec.renter = "{\"cluster\":{}}";
  spec.first_port = 4000;
  spec.last_port = 4010;
  return spec;
}

TEST(HeadSpec, ComesBackAsItWas) {
  const HeadSpec spec = sample();
  const auto read = parse_head_spec(to_json(spec));
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(to_json(*read), to_json(spec));
  EXPECT_EQ(read->secrets.at("TOKEN"), "x y\"z");
  EXPECT_EQ(read->nodes[1].envs.at("K"), "V");
  EXPECT_EQ(read->nodes[1].trainer, "/s/bin/lockstep-train");
  EXPECT_EQ(read->renter, spec.renter);
  EXPECT_EQ(*read->timeout, Duration(std::chrono::seconds(90)));
  EXPECT_EQ(*read->price_per_hour, Money::from_dollars(0.25));
  EXPECT_EQ(read->before, Duration(std::chrono::seconds(40)));
  EXPECT_EQ(read->terms.reserve, Duration(std::chrono::seconds(120)));
  EXPECT_EQ(*read->terms.life, Duration(std::chrono::hours(2)));
  EXPECT_EQ(read->terms.gigabyte, Money::from_dollars(0.09));
  HeadSpec bare = spec;
  bare.timeout.reset();
  bare.price_per_hour.reset();
  const auto again = parse_head_spec(to_json(bare));
  ASSERT_TRUE(again);
  EXPECT_FALSE(again->timeout);
  EXPECT_FALSE(again->price_per_hour);
}

TEST(HeadSpec, TheRenterIsToldWhatJoiningTakes) {
  HeadSpec spec = sample();
  spec.nodes[1].spot = true;
  const auto told = nlohmann::json::parse(
      complete_renter_orders(spec, "make", {"10.0.0.1:4000"}));
  EXPECT_TRUE(told.contains("cluster"));
  EXPECT_EQ(told.at("run").at("key"), spec.key);
  EXPECT_EQ(told.at("run").at("setup"), "make");
  EXPECT_EQ(told.at("run").at("addresses").at(0), "10.0.0.1:4000");
  const auto& nodes = told.at("run").at("nodes");
  ASSERT_EQ(nodes.size(), 2U);
  EXPECT_EQ(nodes[0].at("folder"), "/n/0");
  EXPECT_FALSE(nodes[0].at("spot").get<bool>());
  EXPECT_TRUE(nodes[1].at("spot").get<bool>());
  spec.renter.clear();
  EXPECT_EQ(complete_renter_orders(spec, "", {}), "");
}

TEST(HeadSpec, RefusesWhatItCannotUse) {
  const auto refused = [](auto change) {
    HeadSpec spec = sample();
    change(spec);
    const auto read = parse_head_spec(to_json(spec));
    return read ? std::string() : read.error().to_string();
  };
  EXPECT_NE(refused([](auto& s) { s.run_id = "../x"; }).find("run id"), -1UL);
  EXPECT_NE(refused([](auto& s) { s.key = "12"; }).find("key"), -1UL);
  EXPECT_NE(refused([](auto& s) { s.nodes.clear(); }).find("node"), -1UL);
  EXPECT_NE(
      refused([](auto& s) { s.nodes[1].procs = 0; }).find("user@b has 0 ranks"),
      -1UL);
  EXPECT_NE(refused([](auto& s) { s.last_port = 70000; }).find("ports"), -1UL);
  EXPECT_FALSE(parse_head_spec(""));
  EXPECT_FALSE(parse_head_spec("[]"));
  EXPECT_FALSE(parse_head_spec("{\"launcher\": 3}"));
}

}  // namespace
}  // namespace lockstep::launch
