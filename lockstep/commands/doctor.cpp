#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/log.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/table.h"
#include "lockstep/fetch/datasets.h"
#include "lockstep/launch/program.h"
#include "lockstep/os/host.h"
#include "lockstep/os/process.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

enum class Grade { kGood, kLacking, kBroken };

struct Finding {
  std::string what;
  Grade grade = Grade::kGood;
  std::string detail;
  std::string fix;
};

std::string to_string(Grade grade) {
  switch (grade) {
    case Grade::kGood:
      return "ok";
    case Grade::kLacking:
      return "lacking";
    case Grade::kBroken:
      return "broken";
  }
  return "";
}

std::string path_variable() {
  const char* value = std::getenv("PATH");
  return value == nullptr ? "" : value;
}

Finding check_tool(
    const std::string& name,
    const std::string& purpose,
    const std::string& package,
    Grade when_absent) {
  const os::Path found = launch::find_program(name, path_variable());
  if (!found.empty()) {
    return {name, Grade::kGood, found.string(), ""};
  }
  return {
      name,
      when_absent,
      "not in PATH: " + purpose,
      "apt-get install " + package};
}

// It links LibTorch, so that it starts at all says that LibTorch loads.
Finding check_trainer() {
  const os::Path trainer = trainer_program();
  if (trainer.empty()) {
    return {
        "lockstep-train",
        Grade::kLacking,
        "not beside lockstep nor in PATH: 'train:' jobs cannot run",
        "make build, or set LOCKSTEP_TRAINER_BIN"};
  }
  const os::Path log =
      fs::temp_directory_path() / fmt::format("lockstep-doctor-{}", ::getpid());
  os::SpawnOptions options;
  options.argv = {trainer.string(), "--list"};
  options.environment = os::environment();
  options.output = log;
  options.die_with_parent = true;
  std::string trouble;
  if (auto process = os::real_processes().spawn(options); !process) {
    trouble = process.error().to_string();
  } else {
    constexpr auto kPatience = std::chrono::seconds(60);
    const auto status = (*process)->wait(os::Deadline::after(kPatience));
    if (!status) {
      (void)(*process)->signal(SIGKILL).has_value();
      trouble = "does not answer";
    } else if (!status->ok()) {
      const auto text = os::real_files().read(log);
      trouble = status->to_string();
      if (text && !text->empty()) {
        trouble += ": " + text->substr(0, text->find('\n'));
      }
    }
  }
  (void)os::real_files().remove(log).has_value();
  if (trouble.empty()) {
    return {"lockstep-train", Grade::kGood, trainer.string(), ""};
  }
  return {
      "lockstep-train",
      Grade::kBroken,
      fmt::format("{} does not start: {}", trainer.string(), trouble),
      "make build (LibTorch must be where it was built against)"};
}

Finding check_runs_folder(const Settings& settings) {
  const os::Path folder = fs::absolute(settings.runs_dir);
  os::Path existing = folder;
  std::error_code error;
  while (!fs::exists(existing, error) && existing.has_parent_path() &&
         existing != existing.parent_path()) {
    existing = existing.parent_path();
  }
  if (::access(existing.c_str(), W_OK) != 0) {
    return {
        "runs folder",
        Grade::kBroken,
        existing.string() + " is not writable",
        "choose another with --runs-dir or runs_dir in " +
            settings_file().string()};
  }
  const auto space = os::real_files().free_space(existing);
  if (!space) {
    return {"runs folder", Grade::kLacking, space.error().to_string(), ""};
  }
  constexpr uint64_t kLittle = uint64_t{1} << 30;
  const std::string detail =
      fmt::format("{}, {} free", folder.string(), format_bytes(*space));
  if (space->count < kLittle) {
    return {
        "runs folder",
        Grade::kLacking,
        detail,
        "checkpoints need room: free some, or choose another folder"};
  }
  return {"runs folder", Grade::kGood, detail, ""};
}

std::vector<Finding> look(const Settings& settings) {
  std::vector<Finding> findings;
  const os::HostFacts facts = os::host_facts();
  findings.push_back({"lockstep", Grade::kGood, version(), ""});
  findings.push_back(check_trainer());
  findings.push_back(
      {"cores",
       Grade::kGood,
       fmt::format("{} ({})", facts.cores, facts.cpu_model),
       ""});
  findings.push_back({"memory", Grade::kGood, format_bytes(facts.memory), ""});
  if (facts.gpus.empty()) {
    findings.push_back(
        {"gpu", Grade::kGood, "none: training runs on the cores", ""});
  }
  for (const os::Gpu& gpu : facts.gpus) {
    findings.push_back(
        {"gpu",
         Grade::kGood,
         fmt::format("{}, {}", gpu.name, format_bytes(gpu.memory)),
         ""});
  }
  findings.push_back(check_runs_folder(settings));
  for (const std::string& name : fetch::dataset_names()) {
    const os::Path folder = fetch::data_cache() / name;
    if (const auto checked = fetch::check_dataset(name, folder)) {
      findings.push_back({"data " + name, Grade::kGood, folder.string(), ""});
    } else {
      findings.push_back(
          {"data " + name,
           Grade::kLacking,
           checked.error().message(),
           "lockstep data get " + name});
    }
  }
  findings.push_back(
      check_tool("bash", "'run:' as text needs it", "bash", Grade::kBroken));
  findings.push_back(
      check_tool("mpirun", "for MPI programs", "openmpi-bin", Grade::kLacking));
  findings.push_back(check_tool(
      "ssh", "to reach other hosts", "openssh-client", Grade::kLacking));
  findings.push_back(check_tool(
      "python3", "for PyTorch programs", "python3", Grade::kLacking));
  return findings;
}

Result<int> doctor(const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  const std::vector<Finding> findings = look(settings);
  int broken = 0;
  nlohmann::json all = nlohmann::json::array();
  Table table({"what", "state", "detail"});
  for (const Finding& finding : findings) {
    broken += finding.grade == Grade::kBroken ? 1 : 0;
    table.add(
        {finding.what,
         to_string(finding.grade),
         finding.fix.empty()
             ? finding.detail
             : fmt::format("{}; {}", finding.detail, finding.fix)});
    all.push_back(
        {{"what", finding.what},
         {"state", to_string(finding.grade)},
         {"detail", finding.detail},
         {"fix", finding.fix}});
  }
  if (context.format() == OutputFormat::kJson) {
    fmt::print(
        "{}\n",
        all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else if (context.format() == OutputFormat::kTable) {
    fmt::print("{}", table.to_string());
  }
  return broken > 0 ? 1 : 0;
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "what is there and lacking, and what fixes it");
  verb->footer("Example: lockstep doctor");
  add_runs_dir(*verb, context);
  auto hosts = std::make_shared<std::string>();
  auto cloud = std::make_shared<bool>(false);
  const std::string other = "Other machines (not part of this version)";
  verb->add_option("--hosts", *hosts, "look at these hosts")
      ->type_name("a,b")
      ->group(other);
  verb->add_flag("--cloud", *cloud, "look at the cloud")->group(other);
  set_action(*verb, context, [&context, hosts, cloud]() -> Result<int> {
    if (!hosts->empty() || *cloud) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "{}: looking at other machines is not part of this version",
              hosts->empty() ? "--cloud" : "--hosts"));
    }
    return doctor(context);
  });
}

}  // namespace lockstep::commands
