#include "lockstep/config/groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Groups example() {
  Groups groups;
  groups.add("data", "cifar10", "data: {name: cifar10, image_size: 32}\n");
  groups.add("data", "mnist", "data: {name: mnist, image_size: 28}\n");
  groups.add("trainer", "ddp", "trainer.strategy: ddp\n");
  groups.add("experiment", "small", "data: {name: mnist, batch_size: 4}\n");
  return groups;
}

Result<Node> resolved(std::vector<std::string> arguments) {
  auto base = parse_yaml("data: {name: none, batch_size: 16}\n", "base.yaml");
  return resolve(example(), std::move(*base), arguments);
}

std::string shown(std::vector<std::string> arguments) {
  const auto node = resolved(std::move(arguments));
  return node ? to_flow_yaml(*node) : node.error().to_string();
}

TEST(Groups, ListsWhatWasAdded) {
  EXPECT_THAT(example().names(), ElementsAre("data", "trainer", "experiment"));
  EXPECT_THAT(example().choices("data"), ElementsAre("cifar10", "mnist"));
  EXPECT_THAT(example().choices("experiment"), ElementsAre("small"));
  EXPECT_FALSE(example().contains("optim"));
}

TEST(Resolve, GroupsComeBeforeOverrides) {
  EXPECT_EQ(
      shown({"data.image_size=64", "data=cifar10", "trainer=ddp"}),
      "{data: {name: cifar10, batch_size: 16, image_size: 64}, "
      "trainer: {strategy: ddp}}");
}

TEST(Resolve, WhatIsChosenBesideAnExperimentWins) {
  const std::string wanted =
      "{data: {name: cifar10, batch_size: 8, image_size: 32}}";
  EXPECT_EQ(
      shown({"data=cifar10", "data.batch_size=8", "experiment=small"}), wanted);
  EXPECT_EQ(
      shown({"experiment=small", "data.batch_size=8", "data=cifar10"}), wanted);
}

TEST(Resolve, TheLaterWins) {
  EXPECT_EQ(
      shown({"data=cifar10", "data=mnist"}),
      "{data: {name: mnist, batch_size: 16, image_size: 28}}");
  EXPECT_EQ(
      shown({"data.name=a", "data.name=b"}),
      "{data: {name: b, batch_size: 16}}");
  EXPECT_EQ(shown({}), "{data: {name: none, batch_size: 16}}");
}

TEST(Resolve, UnknownChoicesGetTheNearest) {
  EXPECT_EQ(
      shown({"data=cifar", "nonsense"}),
      "command line 'data=cifar': 'cifar' is not a choice of data; did you "
      "mean 'cifar10'? (or the path of a .yaml file)\n"
      "command line 'nonsense': this is not key=value (such as "
      "optim.lr=0.001)");
  EXPECT_THAT(shown({"data=zzzzzzzz"}), HasSubstr("accepted: cifar10, mnist"));
  Groups files = example();
  files.add("files");
  EXPECT_THAT(
      resolve(files, Node(), std::vector<std::string>{"files=quick"})
          .error()
          .to_string(),
      HasSubstr("it takes the path of a .yaml file"));
}

TEST(Resolve, AChoiceMayBeAFile) {
  char folder[] = "/tmp/lockstep-groups-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/my.yaml";
  std::ofstream(path) << "optim: {lr: 3}\ndata.batch_size: 8\n";
  EXPECT_EQ(
      shown({"experiment=" + path, "data.batch_size=4"}),
      "{data: {name: none, batch_size: 4}, optim: {lr: 3}}");
  const auto node = resolved({"experiment=" + path});
  ASSERT_TRUE(node);
  EXPECT_EQ(node->find("optim")->find("lr")->place().to_string(), path + ":1");
  std::ofstream(path) << "[1, 2]\n";
  EXPECT_THAT(shown({"experiment=" + path}), HasSubstr("a map of keys"));
  EXPECT_THAT(shown({"experiment=" + path + ".yml"}), HasSubstr(path + ".yml"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::config
