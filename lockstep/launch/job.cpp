#include "lockstep/launch/job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "lockstep/base/nearest.h"
#include "lockstep/launch/container.h"
#include "lockstep/launch/pattern.h"

namespace lockstep::launch {
namespace {

using config::Node;

Error invalid(const config::Place& place, const std::string& what) {
  const std::string where = place.to_string();
  return Error(
      ErrorCode::kInvalidInput,
      where.empty() ? what : fmt::format("{}: {}", where, what));
}

bool given(const Node& node) {
  return node.kind() != Node::Kind::kNull;
}

// Groups of the trainer: `data=cifar10` chooses one, and `data.workers=2` sets
// a key in it, so inside the tree the choice is `data.name`.
bool is_group(std::string_view key) {
  return key == "data" || key == "trainer";
}

void name_choices(Node& tree) {
  const Node* train = tree.find("train");
  if (train == nullptr || train->kind() != Node::Kind::kMap) {
    return;
  }
  Node renamed = *train;
  for (const auto& [key, value] : train->entries()) {
    if (is_group(key) && value.kind() == Node::Kind::kScalar) {
      Node group = Node::map(value.place());
      group.set("name", value);
      renamed.set(key, std::move(group));
    }
  }
  tree.set("train", std::move(renamed));
}

std::vector<std::string> top_keys() {
  std::vector<std::string> keys;
  for (const config::FieldDoc& doc : config::describe<Job>()) {
    std::string key = doc.key.substr(0, doc.key.find('.'));
    if (std::ranges::find(keys, key) == keys.end()) {
      keys.push_back(std::move(key));
    }
  }
  return keys;
}

Result<void> flatten(
    const Node& node,
    const std::string& key,
    std::vector<std::string>& arguments) {
  switch (node.kind()) {
    case Node::Kind::kNull:
      return {};
    case Node::Kind::kScalar:
      // Quotes in the file said "text": they must reach the trainer too.
      arguments.push_back(
          key + "=" +
          (node.quoted() && node.text().starts_with('[')
               ? config::quote_yaml(node.text())
               : node.text()));
      return {};
    case Node::Kind::kList:
      arguments.push_back(key + "=" + config::to_flow_yaml(node));
      return {};
    case Node::Kind::kMap:
      break;
  }
  for (const auto& [name, value] : node.entries()) {
    if (name == "name" && is_group(key)) {
      LOCKSTEP_TRY(flatten(value, key, arguments));
    } else {
      LOCKSTEP_TRY(flatten(value, key + "." + name, arguments));
    }
  }
  return {};
}

Result<void> take_secrets(Job& job, const Environment& environment) {
  const Node secrets = job.secrets;
  if (given(secrets) && secrets.kind() != Node::Kind::kMap) {
    return invalid(
        secrets.place(), "secrets must be a map of names: {TOKEN: null}");
  }
  if (!given(secrets)) {
    return {};
  }
  job.secrets = Node::map(secrets.place());
  for (const auto& [name, value] : secrets.entries()) {
    if (value.kind() == Node::Kind::kScalar) {
      job.secret_values[name] = value.text();
    } else if (value.kind() != Node::Kind::kNull) {
      return invalid(
          value.place(),
          fmt::format("secrets.{} must be null or one text", name));
    } else if (
        const auto found = environment.find(name); found != environment.end()) {
      job.secret_values[name] = found->second;
    } else {
      return std::move(invalid(
                           value.place(),
                           fmt::format("secrets.{0}: {0} is not set", name)))
          .with_fix(fmt::format("export {}=... before you start", name));
    }
    job.secrets.set(name, Node::null(value.place()));
  }
  return {};
}

Result<void> check_names(const Job& job, const Node& tree) {
  const auto check = [&](const char* group, const std::string& name) {
    const Node* section = tree.find(group);
    const Node* entry = section == nullptr ? nullptr : section->find(name);
    const config::Place place =
        entry == nullptr ? config::Place{} : entry->place();
    if (name.empty() || name.find('=') != std::string::npos) {
      return Result<void>(
          invalid(place, fmt::format("{}: '{}' is no name", group, name)));
    }
    const size_t dot = name.rfind('.');
    if (is_reserved_name(
            dot == std::string::npos ? name : name.substr(dot + 1))) {
      return Result<void>(invalid(
          place,
          fmt::format(
              "{}.{}: lockstep sets this itself for each rank", group, name)));
    }
    return Result<void>();
  };
  for (const auto& [name, value] : job.envs) {
    LOCKSTEP_TRY(check("envs", name));
  }
  for (const auto& [name, value] : job.secret_values) {
    LOCKSTEP_TRY(check("secrets", name));
  }
  return {};
}

Result<void> check_program(const Job& job, const Node& tree) {
  if (given(job.run) && given(job.train)) {
    return invalid(
        job.train.place(), "a job has either 'run' or 'train', not both");
  }
  if (!given(job.run) && !given(job.train)) {
    return std::move(invalid(
                         {tree.place().source, 0},
                         "the job says neither 'run' nor 'train'"))
        .with_fix(
            "add 'run: python3 train.py' or 'train: {recipe: dcgan, ...}'");
  }
  for (const int rank : {0, 1}) {
    LOCKSTEP_TRY(job_command(job, "lockstep-train", 0, rank));
  }
  LOCKSTEP_TRY(job_container(job));
  return {};
}

// A text goes through a shell, a list is the argument vector as it stands.
Result<std::vector<std::string>>
command_of(const Node& node, const std::string& key, const char* shell) {
  if (node.kind() == Node::Kind::kScalar) {
    return std::vector<std::string>{shell, "-c", node.text()};
  }
  if (node.kind() != Node::Kind::kList) {
    return invalid(
        node.place(), key + " must be a command or a list of arguments");
  }
  std::vector<std::string> argv;
  for (const Node& item : node.items()) {
    if (item.kind() != Node::Kind::kScalar) {
      return invalid(item.place(), key + ": every argument must be a text");
    }
    argv.push_back(item.text());
  }
  if (argv.empty() || argv[0].empty()) {
    return invalid(node.place(), key + ": no program is named");
  }
  return argv;
}

// The program of a rank when each role has its own.
Result<std::vector<std::string>>
role_command(const Node& run, int rank, const char* shell) {
  for (const auto& [role, program] : run.entries()) {
    if (role != "head" && role != "worker") {
      return invalid(
          program.place(), fmt::format("run.{}: accepted: head, worker", role));
    }
  }
  const std::string role = rank == 0 ? "head" : "worker";
  const Node* program = run.find(role);
  if (program == nullptr || !given(*program)) {
    return invalid(
        run.place(),
        fmt::format("run: '{}' is missing; both head and worker are", role));
  }
  return command_of(*program, "run." + role, shell);
}

Result<Job>
finish_job(const Node& tree, Job defaults, const Environment& environment) {
  LOCKSTEP_ASSIGN(Job job, config::read<Job>(tree, std::move(defaults)));
  LOCKSTEP_TRY(check_program(job, tree));
  LOCKSTEP_TRY(take_secrets(job, environment));
  LOCKSTEP_TRY(check_names(job, tree));
  std::error_code ignored;
  job.workdir = std::filesystem::absolute(
                    job.workdir.empty() ? "." : job.workdir, ignored)
                    .lexically_normal()
                    .string();
  if (job.workdir.size() > 1 && job.workdir.ends_with('/')) {
    job.workdir.pop_back();
  }
  return job;
}

Result<Node>
lay_over(Node tree, const std::vector<std::string>& overrides, bool has_train) {
  const std::vector<std::string> own = top_keys();
  for (const std::string& text : overrides) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return Error(
          ErrorCode::kInvalidInput, fmt::format("'{}' is not key=value", text));
    }
    const std::string key = text.substr(0, equals);
    const bool is_own =
        std::ranges::find(own, key.substr(0, key.find('.'))) != own.end();
    if (is_own || !has_train) {
      LOCKSTEP_ASSIGN(const Node over, config::parse_override(text));
      tree = config::merge(std::move(tree), over);
      continue;
    }
    const std::string name = is_group(key) ? key + ".name" : key;
    LOCKSTEP_ASSIGN(
        const Node over,
        config::parse_override("train." + name + text.substr(equals)));
    tree = config::merge(std::move(tree), over);
  }
  return tree;
}

}  // namespace

void ResourcesConfig::bind(config::Binder& binder) {
  binder.field("hosts", hosts, "own hosts, the head first");
  binder.field("hostfile", hostfile, "file of 'host slots=N' lines");
  binder.field(
      "ssh_options", ssh_options, "more options for ssh, one word each");
  binder.field("cluster", cluster, "name of a running cluster");
  binder.text(
      "launcher", launcher, "local, ssh, mpi or slurm", [](const auto& name) {
        const std::vector<std::string> accepted = {
            "local", "ssh", "mpi", "slurm"};
        if (std::ranges::find(accepted, name) == accepted.end()) {
          return Result<void>(Error(
              ErrorCode::kInvalidInput,
              fmt::format("'{}'; {}", name, suggest(name, accepted))));
        }
        return Result<void>();
      });
  binder.field("cloud", cloud, "where machines are rented");
  binder.field("region", region, "of the cloud");
  binder.field("instance_type", instance_type, "machine type");
  binder.field("candidates", candidates, "machine types to choose from");
  binder.field("cpus", cpus, "cores a node: 4 or 4+");
  binder.field("memory", memory, "GB a node: 16 or 16+");
  binder.field("accelerators", accelerators, "GPUs a node: T4:1");
  binder.field("use_spot", use_spot, "true, false or auto");
  binder.field("image_id", image_id, "machine image");
  binder.field("price", price, "dollars an hour and node", config::at_least(0));
}

void PatternConfig::bind(config::Binder& binder) {
  binder.text(
      "pattern",
      pattern,
      "regular expression with named groups, read from rank 0's log",
      [](const std::string& text) -> Result<void> {
        LOCKSTEP_TRY(Pattern::compile(text));
        return {};
      });
}

std::optional<Duration> HangConfig::limit() const {
  const auto parsed = parse_duration(after);
  return after == "auto" || !parsed ? std::nullopt : std::optional(*parsed);
}

void HangConfig::bind(config::Binder& binder) {
  binder.choice(
      "policy",
      policy,
      {"report", "restart", "stop"},
      "what follows when a rank hangs");
  binder.text(
      "after",
      after,
      "no step for so long is a hang; auto: by the rank's own pace",
      [](const std::string& text) -> Result<void> {
        const auto parsed = parse_duration(text);
        if (text == "auto" || (parsed && *parsed > Duration(0))) {
          return {};
        }
        return Error(
            ErrorCode::kInvalidInput,
            fmt::format("'{}'; accepted: auto, or a duration (90s, 5m)", text));
      });
}

void MpiConfig::bind(config::Binder& binder) {
  binder.field("options", options, "more options of mpirun");
}

void SlurmConfig::bind(config::Binder& binder) {
  binder.field("partition", partition, "of the cluster; absent: its default");
  binder.field("options", options, "more options of sbatch");
}

void OptimiseConfig::bind(config::Binder& binder) {
  binder.field("goal", goal, "cost or time");
  binder.field("period", period, "between decisions");
  binder.field("candidates", candidates, "machine types to choose from");
}

void Job::bind(config::Binder& binder) {
  binder.field("name", name, "of the run");
  binder.group("resources", resources, "machines; absent: this one");
  binder.field("num_nodes", num_nodes, "nodes", config::at_least(1));
  binder.field(
      "procs_per_node",
      procs_per_node,
      "ranks a node; absent: its GPUs, else 1",
      config::at_least(1));
  binder.raw("container", container, "image for the ranks, or {build: FILE}");
  binder.field("workdir", workdir, "folder the ranks start in");
  binder.field("envs", envs, "environment of the ranks");
  binder.raw("secrets", secrets, "names taken from your environment");
  binder.field("file_mounts", file_mounts, "data brought to the nodes");
  binder.field("setup", setup, "shell commands before the ranks start");
  binder.raw(
      "run", run, "a shell command, a list of arguments, or {head:, worker:}");
  binder.raw("train", train, "recipe and keys of the native trainer");
  binder.group("iterations", iterations, "how to read steps from the output");
  binder.group("epochs", epochs, "how to read epochs from the output");
  binder.field("outputs", outputs, "where results are stored");
  binder.text(
      "stop_signal",
      stop_signal,
      "asks ranks to end",
      [](const std::string& text) -> Result<void> {
        LOCKSTEP_TRY(parse_signal(text));
        return {};
      });
  binder.field(
      "grace", grace, "between stop_signal and SIGKILL", config::at_least(0));
  binder.group("hang", hang, "ranks that take no more steps");
  binder.group("optimise", optimise, "change the machines while it runs");
  binder.group("mpi", mpi, "for launcher mpi");
  binder.group("slurm", slurm, "for launcher slurm");
  binder.field("budget", budget, "most dollars", config::above(0));
  binder.field("max_duration", max_duration, "longest run", config::above(0));
}

Result<Job> load_job(
    const std::string& path,
    const std::vector<std::string>& overrides,
    const Environment& environment) {
  LOCKSTEP_ASSIGN(Node tree, config::load_yaml(path));
  const Node* train = tree.find("train");
  const bool has_train = train != nullptr && given(*train);
  name_choices(tree);
  LOCKSTEP_ASSIGN(tree, lay_over(std::move(tree), overrides, has_train));
  Job defaults;
  defaults.name = std::filesystem::path(path).stem().string();
  return finish_job(tree, std::move(defaults), environment);
}

Result<Job> parse_job(
    const std::string& text,
    const std::string& source,
    const Environment& secrets) {
  LOCKSTEP_ASSIGN(Node tree, config::parse_yaml(text, source));
  name_choices(tree);
  return finish_job(tree, Job(), secrets);
}

Environment common_envs(const Job& job) {
  Environment common;
  for (const auto& [name, value] : job.envs) {
    if (name.find('.') == std::string::npos) {
      common.emplace(name, value);
    }
  }
  return common;
}

Environment host_envs(const Job& job, const std::string& host) {
  Environment own;
  for (const auto& [name, value] : job.envs) {
    const size_t dot = name.rfind('.');
    if (dot != std::string::npos && name.substr(0, dot) == host) {
      own.emplace(name.substr(dot + 1), value);
    }
  }
  return own;
}

Result<void> check_host_envs(
    const Job& job,
    const std::vector<std::string>& hosts) {
  for (const auto& [name, value] : job.envs) {
    const size_t dot = name.rfind('.');
    const std::string host = name.substr(0, dot);
    if (dot != std::string::npos &&
        std::ranges::find(hosts, host) == hosts.end()) {
      return Error(
          ErrorCode::kInvalidInput,
          hosts.empty()
              ? fmt::format("envs.{}: a host's own values need --hosts", name)
              : fmt::format(
                    "envs.{}: '{}' is not a host of this run; {}",
                    name,
                    host,
                    suggest(host, hosts)));
    }
  }
  return {};
}

Result<Job> program_job(
    const std::vector<std::string>& argv,
    const std::vector<std::string>& overrides,
    const Environment& environment) {
  if (argv.empty()) {
    return Error(ErrorCode::kInvalidInput, "no program after '--'");
  }
  const config::Place place{"command line", 0};
  Node run = Node::list(place);
  for (const std::string& argument : argv) {
    run.append(Node::scalar(argument, place, true));
  }
  Node tree = Node::map(place);
  tree.set("run", std::move(run));
  LOCKSTEP_ASSIGN(tree, lay_over(std::move(tree), overrides, false));
  Job defaults;
  defaults.name = std::filesystem::path(argv[0]).filename().string();
  return finish_job(tree, std::move(defaults), environment);
}

Result<void> check_supported(const Job& job) {
  std::vector<std::string> lacking;
  const auto refuse = [&](bool asked, const char* key, const char* what) {
    if (asked) {
      lacking.push_back(
          fmt::format("{}: {} is not part of this version", key, what));
    }
  };
  const ResourcesConfig& resources = job.resources;
  const char* cloud = "renting machines";
  refuse(
      !resources.cluster.empty(), "resources.cluster", "running on clusters");
  refuse(!resources.cloud.empty(), "resources.cloud", cloud);
  refuse(!resources.region.empty(), "resources.region", cloud);
  refuse(!resources.instance_type.empty(), "resources.instance_type", cloud);
  refuse(!resources.candidates.empty(), "resources.candidates", cloud);
  refuse(!resources.cpus.empty(), "resources.cpus", cloud);
  refuse(!resources.memory.empty(), "resources.memory", cloud);
  refuse(!resources.accelerators.empty(), "resources.accelerators", cloud);
  refuse(!resources.use_spot.empty(), "resources.use_spot", cloud);
  refuse(!resources.image_id.empty(), "resources.image_id", cloud);
  for (const auto& [name, source] : job.file_mounts) {
    refuse(
        source.find("://") != std::string::npos,
        "file_mounts",
        "mounting what is not a local path");
  }
  refuse(!job.outputs.empty(), "outputs", "storing outputs elsewhere");
  refuse(
      !job.optimise.goal.empty() || job.optimise.period ||
          !job.optimise.candidates.empty(),
      "optimise",
      "changing machines while a job runs");
  if (lacking.empty()) {
    return {};
  }
  return Error(
      ErrorCode::kInvalidInput, fmt::format("{}", fmt::join(lacking, "\n")));
}

Result<std::vector<std::string>> trainer_arguments(const Node& train) {
  if (train.kind() == Node::Kind::kScalar) {
    return std::vector<std::string>{train.text()};
  }
  const Node* recipe =
      train.kind() == Node::Kind::kMap ? train.find("recipe") : nullptr;
  if (recipe == nullptr || recipe->kind() != Node::Kind::kScalar) {
    return invalid(train.place(), "train needs a recipe: {recipe: dcgan, ...}");
  }
  std::vector<std::string> arguments = {recipe->text()};
  for (const auto& [key, value] : train.entries()) {
    if (key != "recipe") {
      LOCKSTEP_TRY(flatten(value, key, arguments));
    }
  }
  return arguments;
}

Result<std::vector<std::string>>
job_command(const Job& job, const os::Path& trainer, int generation, int rank) {
  if (given(job.train)) {
    LOCKSTEP_ASSIGN(
        std::vector<std::string> arguments, trainer_arguments(job.train));
    const bool told = std::ranges::any_of(arguments, [](const auto& text) {
      return text.starts_with("trainer.resume=");
    });
    if (generation > 0 && !told) {
      arguments.emplace_back("trainer.resume=auto");
    }
    arguments.insert(
        arguments.begin(),
        given(job.container) ? "lockstep-train" : trainer.string());
    return arguments;
  }
  const char* shell = given(job.container) ? "sh" : "bash";
  if (job.run.kind() == Node::Kind::kMap) {
    return role_command(job.run, rank, shell);
  }
  if (given(job.run)) {
    return command_of(job.run, "run", shell);
  }
  return invalid(job.run.place(), "run: no program is named");
}

std::string job_yaml(const Job& job) {
  return redact(job, job_text(job));
}

std::string job_text(const Job& job) {
  const auto defaults = config::describe<Job>();
  auto docs = config::describe<Job>(job);
  std::vector<config::FieldDoc> changed;
  for (size_t i = 0; i < docs.size(); ++i) {
    if (docs[i].value != defaults[i].value) {
      changed.push_back(std::move(docs[i]));
    }
  }
  return config::print_yaml(changed);
}

std::string redact(const Job& job, std::string text) {
  constexpr size_t kShortest = 3;  // shorter ones would riddle every text
  for (const auto& [name, value] : job.secret_values) {
    if (value.size() < kShortest) {
      continue;
    }
    size_t at = 0;
    while ((at = text.find(value, at)) != std::string::npos) {
      text.replace(at, value.size(), "***");
      at += 3;
    }
  }
  return text;
}

Result<int> parse_signal(const std::string& text) {
  const std::string name = text.starts_with("SIG") ? text.substr(3) : text;
  std::vector<std::string> accepted;
  for (int number = 1; number < NSIG; ++number) {
    const char* abbreviation = ::sigabbrev_np(number);
    if (abbreviation == nullptr) {
      continue;
    }
    if (name == abbreviation || text == std::to_string(number)) {
      return number;
    }
    accepted.push_back(std::string("SIG") + abbreviation);
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "'{}' is no signal; {}",
          text,
          nearest_names(text, accepted).empty()
              ? "accepted: SIGTERM, SIGINT, SIGUSR1, ..."
              : suggest(text, accepted)));
}

}  // namespace lockstep::launch
