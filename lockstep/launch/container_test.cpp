#include "lockstep/launch/container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/config/node.h"

namespace lockstep::launch {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

Result<std::optional<ContainerConfig>> read(const std::string& yaml) {
  Job job;
  auto tree = config::parse_yaml(yaml, "job.yaml");
  EXPECT_TRUE(tree.has_value());
  job.container = *tree->find("container");
  return job_container(job);
}

std::string error(const std::string& yaml) {
  const auto config = read(yaml);
  return config ? "" : config.error().to_string();
}

ContainerConfig image_only() {
  ContainerConfig config;
  config.image = "i";
  return config;
}

RankCommand command() {
  RankCommand command;
  command.rank = 3;
  command.argv = {"python3", "train.py"};
  command.directory = "/work";
  command.environment = {
      {"RANK", "3"},
      {"PATH", "/usr/bin"},
      {"TOKEN", "hush hush"},
      {"LOCKSTEP_EVENTS", "/run/ranks/3.jsonl"},
      {"LOCKSTEP_SHIM", "{\"key\": \"k\"}"}};
  return command;
}

ContainerSpec spec_of(const RankCommand& command) {
  const auto spec = parse_container_spec(command.argv.at(2));
  EXPECT_TRUE(spec.has_value());
  return *spec;
}

TEST(ContainerTest, AJobNamesAnImageOrADockerfile) {
  EXPECT_FALSE(read("container:\n")->has_value());
  EXPECT_EQ((*read("container: my/image:tag\n"))->image, "my/image:tag");
  const auto config = *read(
      "container: {build: ./Dockerfile, engine: podman, options: [-v, /d:/d]}");
  EXPECT_EQ(config->build, "./Dockerfile");
  EXPECT_EQ(config->engine, "podman");
  EXPECT_THAT(config->options, ElementsAre("-v", "/d:/d"));
}

TEST(ContainerTest, WrongKeysAreNamedWithTheirLine) {
  EXPECT_THAT(
      error("container:\n  imag: x\n"),
      AllOf(HasSubstr("job.yaml:2"), HasSubstr("'image'")));
  EXPECT_THAT(
      error("container: {image: x, engine: lxc}"),
      HasSubstr("accepted: docker, podman"));
  EXPECT_THAT(error("container: {image: x, build: y}"), HasSubstr("not both"));
  EXPECT_THAT(error("container: {engine: docker}"), HasSubstr("'image'"));
  EXPECT_THAT(error("container: [x]"), HasSubstr("build: Dockerfile"));
  EXPECT_THAT(error("container: {image: x, options: y}"), HasSubstr("a list"));
}

TEST(ContainerTest, ValuesNeverStandInTheCommand) {
  RankCommand one = command();
  contain(one, image_only(), "id", 2, "/folder", {"/run"}, {{"TOKEN", ""}});
  EXPECT_THAT(one.argv, Contains("train.py"));
  for (const auto& argv : {one.argv, one.after}) {
    for (const std::string& word : argv) {
      EXPECT_THAT(word, Not(HasSubstr("hush")));
    }
  }
  // The job's own and those of the rank; nothing else of the node, no key.
  EXPECT_THAT(
      spec_of(one).variables, ElementsAre("LOCKSTEP_EVENTS", "RANK", "TOKEN"));
}

TEST(ContainerTest, TheContainerIsNamedAfterRunGenerationAndRank) {
  RankCommand one = command();
  contain(one, image_only(), "id", 2, "/folder", {"/run"}, {});
  EXPECT_EQ(spec_of(one).name, "lockstep-id-g2-r3");
  EXPECT_EQ(spec_of(one).folder, "/folder");
  EXPECT_THAT(
      one.after, ElementsAre("/proc/self/exe", "uncontain", one.argv[2]));
}

TEST(ContainerTest, ArgumentsOfDockerAndPodman) {
  RankCommand one = command();
  ContainerConfig config = image_only();
  config.options = {"--memory", "1g"};
  contain(one, config, "id", 0, "/folder", {"/run", "/work"}, {});
  const ContainerSpec spec = spec_of(one);
  const auto docker =
      run_arguments(spec, "docker", "i", {"prog", "--rm"}, true, 5, 6);
  EXPECT_THAT(
      docker,
      IsSupersetOf(
          {"--rm", "--init", "--gpus", "all", "--user", "5:6", "/run:/run"}));
  EXPECT_EQ(std::ranges::count(docker, "/work:/work"), 1);
  // Options stand before the image, the program after it.
  const auto image = std::ranges::find(docker, "i");
  EXPECT_THAT(
      std::vector<std::string>(image - 2, docker.end()),
      ElementsAre("--memory", "1g", "i", "prog", "--rm"));
  const auto podman = run_arguments(spec, "podman", "i", {"p"}, true, 5, 6);
  EXPECT_THAT(podman, Contains("nvidia.com/gpu=all"));
  EXPECT_THAT(podman, Not(Contains("--user")));
  EXPECT_THAT(
      run_arguments(spec, "docker", "i", {"p"}, false, 0, 0),
      AllOf(Not(Contains("--gpus")), Not(Contains("--user"))));
}

TEST(ContainerTest, TheNodeAddsWhatItAloneKnows) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "container_complete";
  std::filesystem::remove_all(folder);
  for (const char* name : {"work", "data", "session"}) {
    std::filesystem::create_directories(folder / name);
  }
  std::filesystem::create_symlink(folder / "data", folder / "work" / "inside");
  std::filesystem::create_symlink(folder / "data", folder / "outside");
  ContainerSpec spec;
  spec.workdir = folder / "work";
  spec.variables = {"RANK"};
  spec.mounts = {
      folder / "work" / "inside", folder / "outside", folder / "absent"};
  complete(
      spec,
      {{"RANK", "0"},
       {"OMPI_COMM_WORLD_RANK", "0"},
       {"CUDA_VISIBLE_DEVICES", "1"},
       {"LOCKSTEP_SHIM", "secret"},
       {"HOME", "/root"},
       {"PMIX_SERVER_TMPDIR", (folder / "session").string()}});
  EXPECT_THAT(
      spec.variables,
      UnorderedElementsAre(
          "RANK",
          "OMPI_COMM_WORLD_RANK",
          "CUDA_VISIBLE_DEVICES",
          "PMIX_SERVER_TMPDIR"));
  const auto data = folder / "data";
  EXPECT_THAT(spec.mounts, ElementsAre(data, data, folder / "session"));
  EXPECT_THAT(
      spec.config.options,
      ElementsAre(
          "--volume", data.string() + ":" + (folder / "outside").string()));
  const auto words = run_arguments(spec, "docker", "i", {"p"}, false, 0, 0);
  EXPECT_EQ(std::ranges::count(words, data.string() + ":" + data.string()), 1);
}

TEST(ContainerTest, ADescriptionThatIsNoneIsRefused) {
  for (const char* text : {"", "{", "[]", "{}", "{\"image\": 3}"}) {
    EXPECT_FALSE(parse_container_spec(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace lockstep::launch
