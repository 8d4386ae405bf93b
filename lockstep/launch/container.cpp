#include "lockstep/launch/container.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "lockstep/base/nearest.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;
using config::Node;
using nlohmann::json;

// The binary of whoever starts the rank: a keeper of ours.
constexpr const char* kOwnProgram = "/proc/self/exe";

Error invalid(const config::Place& place, const std::string& what) {
  const std::string where = place.to_string();
  return Error(
      ErrorCode::kInvalidInput,
      where.empty() ? what : fmt::format("{}: {}", where, what));
}

Result<std::string> text_of(const Node& node, const std::string& key) {
  if (node.kind() != Node::Kind::kScalar || node.text().empty()) {
    return invalid(node.place(), key + " must be one text");
  }
  return node.text();
}

Result<void>
take_key(ContainerConfig& config, const std::string& key, const Node& value) {
  const std::string full = "container." + key;
  if (key == "image") {
    LOCKSTEP_ASSIGN(config.image, text_of(value, full));
  } else if (key == "build") {
    LOCKSTEP_ASSIGN(config.build, text_of(value, full));
  } else if (key == "engine") {
    LOCKSTEP_ASSIGN(config.engine, text_of(value, full));
    if (std::ranges::find(kContainerEngines, config.engine) ==
        kContainerEngines.end()) {
      return invalid(
          value.place(), fmt::format("{}: accepted: docker, podman", full));
    }
  } else if (key == "options") {
    if (value.kind() != Node::Kind::kList) {
      return invalid(value.place(), full + " must be a list of texts");
    }
    for (const Node& item : value.items()) {
      LOCKSTEP_ASSIGN(std::string option, text_of(item, full));
      config.options.push_back(std::move(option));
    }
  } else {
    const std::vector<std::string> keys = {
        "image", "build", "engine", "options"};
    return invalid(
        value.place(),
        fmt::format("unknown key '{}'; {}", full, suggest(key, keys)));
  }
  return {};
}

// What tells a rank who it is; all else of a node stays outside.
bool belongs_to_rank(const std::string& name) {
  constexpr std::array<std::string_view, 12> kNames = {
      "RANK",
      "WORLD_SIZE",
      "LOCAL_RANK",
      "LOCAL_WORLD_SIZE",
      "NODE_RANK",
      "GROUP_RANK",
      "MASTER_ADDR",
      "MASTER_PORT",
      "OMP_NUM_THREADS",
      "GLOO_SOCKET_IFNAME",
      "NCCL_SOCKET_IFNAME",
      "CUDA_VISIBLE_DEVICES"};
  return std::ranges::find(kNames, name) != kNames.end() ||
         (name.starts_with("LOCKSTEP_") && name != "LOCKSTEP_SHIM") ||
         name.starts_with("TORCHELASTIC_") || name.starts_with("OMPI_") ||
         name.starts_with("PMIX_") || name.starts_with("SLURM_");
}

}  // namespace

Result<std::optional<ContainerConfig>> job_container(const Job& job) {
  const Node& node = job.container;
  ContainerConfig config;
  switch (node.kind()) {
    case Node::Kind::kNull:
      return std::optional<ContainerConfig>();
    case Node::Kind::kScalar:
      if (node.text().empty()) {
        return invalid(node.place(), "container: no image is named");
      }
      config.image = node.text();
      return std::optional(std::move(config));
    case Node::Kind::kList:
      return invalid(
          node.place(), "container must be an image or {build: Dockerfile}");
    case Node::Kind::kMap:
      break;
  }
  for (const auto& [key, value] : node.entries()) {
    LOCKSTEP_TRY(take_key(config, key, value));
  }
  if (config.image.empty() == config.build.empty()) {
    return invalid(
        node.place(), "container needs either 'image' or 'build', not both");
  }
  return std::optional(std::move(config));
}

std::string to_json(const ContainerSpec& spec) {
  json mounts = json::array();
  for (const os::Path& mount : spec.mounts) {
    mounts.push_back(mount.string());
  }
  const json object = {
      {"image", spec.config.image},
      {"build", spec.config.build},
      {"engine", spec.config.engine},
      {"options", spec.config.options},
      {"name", spec.name},
      {"workdir", spec.workdir.string()},
      {"mounts", std::move(mounts)},
      {"variables", spec.variables},
      {"folder", spec.folder.string()}};
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<ContainerSpec> parse_container_spec(const std::string& text) {
  ContainerSpec spec;
  try {
    const json object = json::parse(text);
    spec.config.image = object.at("image").get<std::string>();
    spec.config.build = object.at("build").get<std::string>();
    spec.config.engine = object.at("engine").get<std::string>();
    spec.config.options = object.at("options").get<std::vector<std::string>>();
    spec.name = object.at("name").get<std::string>();
    spec.workdir = object.at("workdir").get<std::string>();
    for (const json& mount : object.at("mounts")) {
      spec.mounts.emplace_back(mount.get<std::string>());
    }
    spec.variables = object.at("variables").get<std::vector<std::string>>();
    spec.folder = object.at("folder").get<std::string>();
  } catch (const json::exception& error) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("not the description of a container: {}", error.what()));
  }
  return spec;
}

void contain(
    RankCommand& command,
    const ContainerConfig& config,
    const std::string& run_id,
    int generation,
    const os::Path& folder,
    std::vector<os::Path> mounts,
    const Environment& wanted) {
  ContainerSpec spec;
  spec.config = config;
  spec.name =
      fmt::format("lockstep-{}-g{}-r{}", run_id, generation, command.rank);
  spec.workdir = command.directory;
  spec.mounts = std::move(mounts);
  spec.folder = folder;
  for (const auto& [name, value] : command.environment) {
    if (belongs_to_rank(name) || wanted.contains(name)) {
      spec.variables.push_back(name);
    }
  }
  const std::string text = to_json(spec);
  std::vector<std::string> argv = {kOwnProgram, "contain", text, "--"};
  for (std::string& word : command.argv) {
    argv.push_back(std::move(word));
  }
  command.argv = std::move(argv);
  command.after = {kOwnProgram, "uncontain", text};
}

void complete(ContainerSpec& spec, const Environment& node) {
  for (const auto& [name, value] : node) {
    if (belongs_to_rank(name) &&
        std::ranges::find(spec.variables, name) == spec.variables.end()) {
      spec.variables.push_back(name);
    }
  }
  // Where Open MPI's daemon and its ranks meet.
  if (const auto session = node.find("PMIX_SERVER_TMPDIR");
      session != node.end()) {
    spec.mounts.emplace_back(session->second);
  }
  std::vector<os::Path> mounts;
  for (const os::Path& mount : spec.mounts) {
    std::error_code absent;
    const os::Path target = fs::canonical(mount, absent);
    if (absent) {
      continue;
    }
    const bool is_link = fs::is_symlink(fs::symlink_status(mount, absent));
    mounts.push_back(is_link ? target : mount);
    // A link inside the workdir is there with it, and only needs its target.
    if (is_link && !mount.string().starts_with(spec.workdir.string() + "/")) {
      spec.config.options.emplace_back("--volume");
      spec.config.options.push_back(target.string() + ":" + mount.string());
    }
  }
  spec.mounts = std::move(mounts);
}

std::vector<std::string> run_arguments(
    const ContainerSpec& spec,
    const std::string& engine,
    const std::string& image,
    const std::vector<std::string>& argv,
    bool has_gpus,
    unsigned user,
    unsigned group) {
  // --init: a program as process 1 would not hear SIGTERM.
  std::vector<std::string> words = {
      "run",
      "--rm",
      "--init",
      "--name",
      spec.name,
      "--network",
      "host",
      "--ipc",
      "host"};
  const auto add = [&](const std::string& option, const std::string& value) {
    words.push_back(option);
    words.push_back(value);
  };
  std::vector<os::Path> mounts = {spec.workdir};
  for (const os::Path& mount : spec.mounts) {
    if (std::ranges::find(mounts, mount) == mounts.end()) {
      mounts.push_back(mount);
    }
  }
  for (const os::Path& mount : mounts) {
    add("--volume", fmt::format("{0}:{0}", mount.string()));
  }
  add("--workdir", spec.workdir.string());
  for (const std::string& name : spec.variables) {
    add("--env", name);  // its value comes from the engine's own environment
  }
  // podman without root maps its root to the user by itself.
  if (user != 0 && engine == "docker") {
    add("--user", fmt::format("{}:{}", user, group));
  }
  if (has_gpus && engine == "docker") {
    add("--gpus", "all");
  } else if (has_gpus) {
    add("--device", "nvidia.com/gpu=all");
  }
  words.insert(
      words.end(), spec.config.options.begin(), spec.config.options.end());
  words.push_back(image);
  words.insert(words.end(), argv.begin(), argv.end());
  return words;
}

}  // namespace lockstep::launch
