#pragma once

// Ranks in containers, by docker or podman on the node itself: host network,
// host IPC, the workdir and the run's folders mounted under their own names.
// A rank's command becomes `lockstep contain SPEC -- PROGRAM`: on the node it
// picks the engine, builds the image when a Dockerfile is given, looks for
// GPUs and becomes `docker run`. Variables are passed by name, so no value
// stands in argv or a file. The engine's client may be killed while its
// container lives on: `lockstep uncontain SPEC` is run after the rank, however
// it ended.

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/job.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

// In the order in which they are looked for.
inline constexpr std::array<std::string_view, 2> kContainerEngines = {
    "docker",
    "podman"};

// The job's `container`: an image, {image: I, engine: docker, options: [...]},
// or {build: FILE}.
struct ContainerConfig {
  std::string image;   // or
  std::string build;   // a Dockerfile, or a folder with one, from the workdir
  std::string engine;  // docker or podman; empty: the first that is there
  std::vector<std::string> options;  // for `run`, before the image
};
// None when the job has none.
Result<std::optional<ContainerConfig>> job_container(const Job& job);

// What the node needs to know to start one rank's container.
struct ContainerSpec {
  ContainerConfig config;
  std::string name;  // of the container: run, rank and generation
  os::Path workdir;
  std::vector<os::Path> mounts;        // beside the workdir
  std::vector<std::string> variables;  // names that go inside
  os::Path folder;  // of the run on the node; the image's id is kept there
};
std::string to_json(const ContainerSpec& spec);
Result<ContainerSpec> parse_container_spec(const std::string& json);

// Turns a rank's command into one that runs in a container and is cleaned up
// after. `wanted` holds the job's own variables; those of the rank environment
// go inside as well, but nothing else of the node's.
void contain(
    RankCommand& command,
    const ContainerConfig& config,
    const std::string& run_id,
    int generation,
    const os::Path& folder,
    std::vector<os::Path> mounts,
    const Environment& wanted);

// On the node: what another launcher (mpirun, srun) set for the rank goes
// inside as well, links are mounted by what they lead to, absent mounts are
// left out. `node`: the rank's variables there.
void complete(ContainerSpec& spec, const Environment& node);

// The arguments of the engine's `run`, without the engine. Pure.
std::vector<std::string> run_arguments(
    const ContainerSpec& spec,
    const std::string& engine,
    const std::string& image,
    const std::vector<std::string>& argv,
    bool has_gpus,
    unsigned user,
    unsigned group);

// The hidden verbs. contain_main returns only when it failed.
int contain_main(const std::string& json, const std::vector<std::string>& argv);
int uncontain_main(const std::string& json);

}  // namespace lockstep::launch
