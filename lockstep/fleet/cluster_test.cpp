#include "lockstep/fleet/cluster.h"

#include <gtest/gtest.h>

namespace lockstep::fleet {
namespace {

Result<Cluster> read(const std::string& text) {
  LOCKSTEP_ASSIGN(const auto node, config::parse_yaml(text, "blue.yaml"));
  return read_cluster(node);
}

std::string error_of(const std::string& text) {
  const auto cluster = read(text);
  return cluster ? "" : cluster.error().to_string();
}

TEST(Cluster, AFileBecomesGroups) {
  const auto cluster = read(
      "name: blue\n"
      "region: us-west-2\n"
      "nodes:\n"
      "  c5.xlarge: {count: 3, minimum: 2, setup: [docker, echo hi]}\n"
      "  'g4dn.xlarge': {use_spot: auto, bid: 0.3, fallback: [g5.xlarge]}\n"
      "  c5.2xlarge: 2\n"
      "idle: 5m\n"
      "subnet: [subnet-1, subnet-2]\n"
      "disk: 50GiB\n"
      "tags: {team: vision}\n"
      "budget: 20 USD\n");
  ASSERT_TRUE(cluster) << cluster.error().to_string();
  ASSERT_EQ(cluster->groups.size(), 3U);
  EXPECT_EQ(cluster->groups[0].type, "c5.xlarge");
  EXPECT_EQ(cluster->groups[0].minimum, 2);
  EXPECT_EQ(cluster->groups[0].setup.size(), 2U);
  EXPECT_EQ(cluster->groups[0].disk->count, uint64_t{50} << 30);
  // The family that was named once gets its second size after the first.
  EXPECT_EQ(cluster->num_nodes(), 6);
  const Cluster again = *cluster_from_json(to_json(*cluster));
  EXPECT_EQ(to_json(again), to_json(*cluster));
  EXPECT_EQ(cluster->first_lease(), std::chrono::minutes(5));
  EXPECT_EQ(cluster->subnets.size(), 2U);
  EXPECT_EQ(cluster->tags.at("team"), "vision");
}

TEST(Cluster, NamesDoNotMoveWhenAGroupGrows) {
  auto cluster = *read("name: b\nnodes: {c5.xlarge: 1, m5.large: 2}\n");
  const auto names = [&] {
    std::string all;
    for (const auto& one : cluster.wanted()) {
      all += one.node + " ";
    }
    return all;
  };
  EXPECT_EQ(names(), "b-0 b-b0 b-b1 ");
  cluster.groups[0].count = 2;
  EXPECT_EQ(names(), "b-0 b-1 b-b0 b-b1 ");
}

TEST(Cluster, BadFilesAreTold) {
  const auto says = [](const std::string& text, const std::string& words) {
    const std::string error = error_of(text);
    EXPECT_NE(error.find(words), std::string::npos) << error << "\n" << text;
  };
  const std::string good = "name: b\nnodes: {c5.xlarge: {count: 1}}\n";
  EXPECT_EQ(error_of(good), "");
  says("nodes: {c5.xlarge: 1}\n", "name");
  says("name: 9b\nnodes: {c5.xlarge: 1}\n", "no name of a cluster");
  says("name: a b\nnodes: {c5.xlarge: 1}\n", "blue.yaml:1");
  says("name: b\n", "nodes");
  says("name: b\nnodes: [c5.xlarge]\n", "a map of types");
  says("name: b\nnodes: {c5.xlarge: {cuont: 2}}\n", "count");
  says("name: b\nnodes: {c5.xlarge: {count: 0}}\n", "count");
  says("name: b\nnodes: {c5.xlarge: {count: 1, minimum: 2}}\n", "minimum 2");
  says("name: b\nnodes: {c5.xlarge: {bid: 1}}\n", "use_spot");
  says("name: b\nnodes: {c5.xlarge: {use_spot: maybe}}\n", "auto");
  says("name: b\nnodes: {c5.xlarge: {setup: {a: b}}}\n", "setup");
  says(good + "cloud: moon\n", "aws");
  says(good + "idel: 3m\n", "idle");
  says(good + "idle: 1s\n", "idle");
  says(good + "zones: [a]\nsubnet: s\n", "exclude");
  says(good + "tags: {'lockstep:cluster': x}\n", "lockstep:");
}

TEST(Cluster, StepsThatAreReadyMade) {
  EXPECT_NE(setup_script("docker").find("docker.io"), std::string::npos);
  EXPECT_EQ(setup_script("echo docker"), "echo docker");
  EXPECT_EQ(ready_made_steps(), std::vector<std::string>{"docker"});
}

}  // namespace
}  // namespace lockstep::fleet
