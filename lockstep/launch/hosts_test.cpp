#include "lockstep/launch/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Hosts, FromTheCommandLine) {
  const auto hosts =
      parse_hosts("a, b:4,user@c,[fe80::1]:2,::1,me@[::2]").value();
  ASSERT_EQ(hosts.size(), 6U);
  EXPECT_EQ(hosts[0].host, "a");
  EXPECT_FALSE(hosts[0].slots);
  EXPECT_EQ(hosts[1].host, "b");
  EXPECT_EQ(hosts[1].slots, 4);
  EXPECT_EQ(hosts[2].host, "user@c");
  EXPECT_EQ(hosts[3].host, "fe80::1");
  EXPECT_EQ(hosts[3].slots, 2);
  EXPECT_EQ(hosts[4].host, "::1");
  EXPECT_EQ(hosts[5].host, "me@::2");
}

TEST(Hosts, MistakesOnTheCommandLine) {
  for (const char* text :
       {"",
        "a,,b",
        "a,",
        "a:0",
        "a:x",
        "a:-1",
        "a:99999",
        "a b",
        "-o",
        "@a",
        "user@",
        "[::1",
        "[::1]x",
        "a;rm",
        "a,b,a"}) {
    const auto hosts = parse_hosts(text);
    ASSERT_FALSE(hosts) << text;
    EXPECT_THAT(hosts.error().message(), HasSubstr("--hosts")) << text;
  }
  EXPECT_THAT(
      parse_hosts("a,a:2").error().message(), HasSubstr("'a' stands twice"));
}

TEST(Hosts, MistakesBeginWithThePlaceAndShowTheItem) {
  const auto message = [](const char* text, const std::string& place) {
    const auto hosts = parse_hosts(text, place);
    return hosts ? "" : hosts.error().message();
  };
  EXPECT_EQ(
      message("a,b:0", "job.yaml:3: resources.hosts"),
      "job.yaml:3: resources.hosts: 'b:0': '0' is not a number of slots; "
      "accepted: 1 to 4096");
  EXPECT_EQ(
      message("a,[::1]:x", "--hosts"),
      "--hosts: '[::1]:x': 'x' is not a number of slots; accepted: 1 to 4096");
}

TEST(Hosts, FromAFile) {
  const auto hosts = parse_hostfile(
                         "# my machines\n"
                         "\n"
                         "node1 slots=4   # the quick one\n"
                         "node2\r\n"
                         "user@node3:2\n"
                         "\tnode4\tslots=1",
                         "hf")
                         .value();
  ASSERT_EQ(hosts.size(), 4U);
  EXPECT_EQ(hosts[0].slots, 4);
  EXPECT_EQ(hosts[1].host, "node2");
  EXPECT_FALSE(hosts[1].slots);
  EXPECT_EQ(hosts[2].slots, 2);
  EXPECT_EQ(hosts[3].slots, 1);
}

TEST(Hosts, MistakesInAFileNameTheLine) {
  const auto message = [](const char* text) {
    const auto hosts = parse_hostfile(text, "hf");
    EXPECT_FALSE(hosts) << text;
    return hosts ? "" : hosts.error().message();
  };
  EXPECT_THAT(message("a\nb slots=x\n"), HasSubstr("hf:2: 'x'"));
  EXPECT_THAT(message("a\n\n# x\nb max=3\n"), HasSubstr("hf:4: 'max=3'"));
  EXPECT_THAT(message("a slots=1 slots=2"), HasSubstr("hf:1: slots of 'a'"));
  EXPECT_THAT(message("a:1 slots=2"), HasSubstr("stand twice"));
  EXPECT_THAT(
      message("a\nb\na\n"), HasSubstr("hf:3: 'a' stands already in line 1"));
  EXPECT_THAT(message("# nobody\n"), HasSubstr("hf: no host"));
  EXPECT_THAT(
      message(std::string("\x01\xff\n", 3).c_str()), HasSubstr("hf:1: '?\?'"));
}

TEST(Hosts, RanksOfEach) {
  const std::vector<HostSlots> hosts = {{"a", 4}, {"b", {}}, {"c", 2}};
  EXPECT_THAT(
      ranks_by_host(hosts, 0, 0, {8, 3, 8}).value(), ElementsAre(4, 3, 2));
  EXPECT_THAT(ranks_by_host(hosts, 0, 2, {}).value(), ElementsAre(2, 2, 2));
  EXPECT_THAT(ranks_by_host(hosts, 2, 0, {}).value(), ElementsAre(4, 1));
  const auto many = ranks_by_host(hosts, 0, 3, {});
  ASSERT_FALSE(many);
  EXPECT_THAT(
      many.error().message(),
      HasSubstr("3 ranks are wanted on c, which has 2"));
  const auto nodes = ranks_by_host(hosts, 4, 1, {});
  ASSERT_FALSE(nodes);
  EXPECT_THAT(nodes.error().message(), HasSubstr("4 nodes are wanted"));
}

}  // namespace
}  // namespace lockstep::launch
