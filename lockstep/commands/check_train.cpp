#include "lockstep/commands/check_train.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <filesystem>

#include "lockstep/os/descriptor.h"
#include "lockstep/os/process.h"
#include "lockstep/os/temporary_folder.h"

namespace lockstep::commands {
namespace {

using config::Node;

constexpr int kBadInput = 2;  // lockstep-train's exit code
constexpr auto kPatience = std::chrono::seconds(60);
// kMaxRanks of the collective, whose ranks of a host share memory.
constexpr int kMostOnANode = 256;

// A file of its own that is gone when this is.
class Scratch {
 public:
  Scratch()
      : path_((os::temporary_folder() / "lockstep-check-XXXXXX").string()),
        descriptor_(::mkostemp(path_.data(), O_CLOEXEC)) {}
  ~Scratch() { ::unlink(path_.c_str()); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  explicit operator bool() const { return descriptor_.get() >= 0; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  os::Descriptor descriptor_;
};

std::map<std::string, std::string> variables(
    const launch::Job& job,
    int64_t world_size) {
  auto all = os::environment();
  // What another launcher left must not contradict the plan.
  std::erase_if(all, [](const auto& entry) {
    for (const char* prefix : {"OMPI_", "PMIX_", "SLURM_", "LOCKSTEP_"}) {
      if (entry.first.starts_with(prefix)) {
        return true;
      }
    }
    return false;
  });
  for (const auto& [name, value] : job.envs) {
    all[name] = value;
  }
  all["RANK"] = all["LOCAL_RANK"] = "0";
  all["WORLD_SIZE"] = all["LOCAL_WORLD_SIZE"] = std::to_string(world_size);
  all["MASTER_ADDR"] = "127.0.0.1";  // asked for, never called
  all["MASTER_PORT"] = "1";
  return all;
}

// Without the exec's line end, for one Error.
std::string trimmed(std::string text) {
  text.erase(text.find_last_not_of(" \n") + 1);
  return text;
}

void replace_all(
    std::string& text,
    const std::string& from,
    const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;
       at += to.size()) {
    text.replace(at, from.size(), to);
  }
}

// The sections that a key stands in, by their dotted names.
using Sections = std::vector<std::pair<std::string, config::Place>>;

void put_place(
    std::string& text,
    const Node& node,
    const std::string& key,
    const Sections& around) {
  if (node.kind() == Node::Kind::kMap) {
    Sections inside = around;
    inside.emplace_back(key, node.place());
    for (const auto& [name, child] : node.entries()) {
      put_place(text, child, key.empty() ? name : key + "." + name, inside);
    }
    return;
  }
  if (node.place().line == 0) {
    return;  // it was on the command line
  }
  // The argument: the key, or its group where it names a choice.
  constexpr std::string_view kName = ".name";
  std::vector<std::string> heads = {key + "="};
  if (key.ends_with(kName)) {
    heads.push_back(key.substr(0, key.size() - kName.size()) + "=");
  }
  for (const std::string& head : heads) {
    const std::string argument =
        fmt::format("command line '{}{}'", head, launch::trainer_value(node));
    // A section that nobody knows was told by the argument of its first key.
    for (const auto& [section, place] : around) {
      const std::string what = fmt::format(": unknown key '{}'", section);
      replace_all(text, argument + what, place.to_string() + what);
    }
    replace_all(text, argument, node.place().to_string());
  }
}

Result<void>
check_node(const launch::Job& job, const std::string& node, int procs) {
  if (job.train.is_null() || procs <= kMostOnANode) {
    return {};
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "{} ranks on {}: lockstep-train takes at most {} on one node "
          "(--procs, procs_per_node)",
          procs,
          node,
          kMostOnANode));
}

}  // namespace

std::string with_places(std::string text, const Node& train) {
  const std::string said = text;
  put_place(text, train, "", {});
  const Node* recipe = train.find("recipe");
  const bool of_recipe =
      recipe != nullptr && text.starts_with("unknown recipe");
  const config::Place& place = of_recipe ? recipe->place() : train.place();
  const bool placed = text != said || text.starts_with(place.source);
  return placed || place.line == 0 ? text : place.to_string() + ": " + text;
}

namespace {

Result<void>
ask(const launch::Job& job, const os::Path& trainer, int64_t world_size) {
  if (job.train.kind() == Node::Kind::kNull) {
    return {};
  }
  LOCKSTEP_ASSIGN(auto argv, launch::job_command(job, trainer, 0));
  argv.emplace_back("--print-config");
  const Scratch said;
  if (!said) {
    return {};
  }
  os::SpawnOptions options;
  options.argv = std::move(argv);
  options.environment = variables(job, world_size);
  options.directory = job.workdir;
  options.output = said.path();
  options.die_with_parent = true;
  auto process = os::real_processes().spawn(options);
  if (!process) {
    return {};
  }
  const auto ended = (*process)->wait(os::Deadline::after(kPatience));
  if (!ended) {
    static_cast<void>((*process)->signal(SIGKILL));
    static_cast<void>((*process)->wait(os::Deadline::after(kPatience)));
    return {};
  }
  if (ended->code != kBadInput) {
    return {};
  }
  LOCKSTEP_ASSIGN(const auto text, os::real_files().read(said.path()));
  return Error(ErrorCode::kInvalidInput, with_places(trimmed(text), job.train));
}

}  // namespace

Result<void> check_train(
    const launch::Job& job,
    const os::Path& trainer,
    const launch::RankPlan& plan) {
  for (const launch::PlannedNode& node : plan.nodes) {
    LOCKSTEP_TRY(check_node(job, node.host, node.procs));
  }
  return ask(job, trainer, plan.world_size());
}

Result<void> check_train(
    const launch::Job& job,
    const os::Path& trainer,
    int nodes,
    int procs) {
  LOCKSTEP_TRY(check_node(job, "each node", procs));
  return ask(job, trainer, int64_t{nodes} * procs);
}

}  // namespace lockstep::commands
