// The node's side of a container: its engine, its image, its end.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>

#include "lockstep/base/to_stderr.h"
#include "lockstep/launch/container.h"
#include "lockstep/launch/local_agent.h"
#include "lockstep/launch/shell.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/process.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

constexpr int kCannotRun = 125;  // as docker says it
constexpr auto kBuildPatience = std::chrono::hours(2);
constexpr auto kEndPatience = std::chrono::seconds(10);

struct Engine {
  std::string name;
  std::string program;
};

Result<Engine> choose_engine(const ContainerConfig& config) {
  for (const std::string_view name : kContainerEngines) {
    if (!config.engine.empty() && config.engine != name) {
      continue;
    }
    if (std::string program = find_in_path(std::string(name));
        !program.empty()) {
      return Engine{std::string(name), std::move(program)};
    }
  }
  return Error(
             ErrorCode::kNotFound,
             fmt::format(
                 "{} is not installed on {}",
                 config.engine.empty() ? "neither docker nor podman"
                                       : config.engine,
                 host_name()))
      .with_fix("install it there, or drop 'container'");
}

Result<void> call(
    const std::vector<std::string>& argv,
    Duration patience,
    const std::optional<os::Path>& output = {}) {
  os::SpawnOptions options;
  options.argv = argv;
  options.environment = os::environment();
  options.output = output;
  options.new_group = false;
  LOCKSTEP_ASSIGN(auto process, os::real_processes().spawn(options));
  const auto status = process->wait(os::Deadline::after(patience));
  if (!status) {
    (void)process->signal(SIGKILL).has_value();
    return Error(status.error());
  }
  if (!status->ok()) {
    return Error(
        ErrorCode::kUnavailable,
        fmt::format(
            "{} {}: {}",
            fs::path(argv[0]).filename().string(),
            argv[1],
            status->to_string()));
  }
  return {};
}

std::string read_id(const os::Path& file) {
  const auto text = os::real_files().read(file);
  if (!text) {
    return "";
  }
  return text->substr(0, text->find_first_of(" \n"));
}

// The engine's cache knows by content what must be built; we only ask it once
// for each run and node, whichever rank comes first.
Result<std::string> build_image(
    const Engine& engine,
    const ContainerSpec& spec) {
  const os::Path id = spec.folder / fmt::format("image-{}", host_name());
  const std::string lock = id.string() + ".lock";
  const os::Descriptor held(
      ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!held || ::flock(held.get(), LOCK_EX) != 0) {
    return os_error(fmt::format("cannot lock {}", lock), errno);
  }
  if (std::string known = read_id(id); !known.empty()) {
    return known;
  }
  os::Path file = spec.config.build;
  if (file.is_relative()) {
    file = spec.workdir / file;
  }
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) {
    file /= "Dockerfile";
  }
  if (!fs::exists(file, ignored)) {
    return Error(
               ErrorCode::kNotFound,
               fmt::format("container.build: {} is not there", file.string()))
        .with_fix("name a Dockerfile inside the workdir");
  }
  const std::string fresh = id.string() + ".new";
  std::vector<std::string> argv = {engine.program, "build", "-q"};
  for (const std::string& word :
       {std::string("--network=host"),
        "--iidfile=" + fresh,
        "--file=" + file.lexically_normal().string(),
        file.parent_path().lexically_normal().string()}) {
    argv.push_back(word);
  }
  LOCKSTEP_TRY(call(argv, kBuildPatience)
                   .with_context(fmt::format("building {}", file.string())));
  std::string built = read_id(fresh);
  if (built.empty() || ::rename(fresh.c_str(), id.c_str()) != 0) {
    return os_error(fmt::format("cannot keep {}", id.string()), errno);
  }
  return built;
}

int fail(const Error& error) {
  to_stderr("lockstep: {}\n", error.to_string());
  return kCannotRun;
}

}  // namespace

int contain_main(
    const std::string& text,
    const std::vector<std::string>& argv) {
  auto spec = parse_container_spec(text);
  if (!spec) {
    return fail(spec.error());
  }
  const auto engine = choose_engine(spec->config);
  if (!engine) {
    return fail(engine.error());
  }
  std::string image = spec->config.image;
  if (image.empty()) {
    auto built = build_image(*engine, *spec);
    if (!built) {
      return fail(built.error());
    }
    image = std::move(*built);
  }
  complete(*spec, os::environment());
  const bool has_gpus = ::access("/dev/nvidiactl", F_OK) == 0;
  std::vector<std::string> words = run_arguments(
      *spec, engine->name, image, argv, has_gpus, ::getuid(), ::getgid());
  std::vector<char*> pointers = {const_cast<char*>(engine->program.c_str())};
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  ::execv(pointers[0], pointers.data());
  return fail(os_error("cannot execute " + engine->program, errno));
}

int uncontain_main(const std::string& text) {
  const auto spec = parse_container_spec(text);
  if (!spec) {
    return fail(spec.error());
  }
  const auto engine = choose_engine(spec->config);
  if (!engine) {
    return 0;  // then there is no container either
  }
  // Not there is the usual answer: a rank that ended took its container along.
  const auto removed = call(
      {engine->program, "rm", "--force", spec->name},
      kEndPatience,
      "/dev/null");
  return removed ? 0 : 1;
}

}  // namespace lockstep::launch
