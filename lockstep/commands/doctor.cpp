#include "lockstep/commands/doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/log.h"
#include "lockstep/commands/cluster_access.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/table.h"
#include "lockstep/fetch/datasets.h"
#include "lockstep/launch/program.h"
#include "lockstep/os/host.h"
#include "lockstep/os/process.h"
#include "lockstep/os/temporary_folder.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

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
      os::temporary_folder() / fmt::format("lockstep-doctor-{}", ::getpid());
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
    } else if (
        const os::Path packaged = fetch::packaged_dataset(name);
        !packaged.empty()) {
      findings.push_back({"data " + name, Grade::kGood, packaged.string(), ""});
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

// How many are broken.
int print_findings(
    const std::vector<Finding>& findings,
    const Context& context) {
  const bool of_hosts = !findings.empty() && !findings.front().host.empty();
  int broken = 0;
  nlohmann::json all = nlohmann::json::array();
  std::vector<std::string> header = {"what", "state", "detail"};
  if (of_hosts) {
    header.insert(header.begin(), "host");
  }
  Table table(header);
  for (const Finding& finding : findings) {
    broken += finding.grade == Grade::kBroken ? 1 : 0;
    std::vector<std::string> row = {
        finding.what,
        to_string(finding.grade),
        finding.fix.empty()
            ? finding.detail
            : fmt::format("{}; {}", finding.detail, finding.fix)};
    nlohmann::json one = {
        {"what", finding.what},
        {"state", to_string(finding.grade)},
        {"detail", finding.detail},
        {"fix", finding.fix}};
    if (of_hosts) {
      row.insert(row.begin(), finding.host);
      one["host"] = finding.host;
    }
    table.add(std::move(row));
    all.push_back(std::move(one));
  }
  if (context.format() == OutputFormat::kJson) {
    fmt::print(
        "{}\n",
        all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
  } else if (context.format() == OutputFormat::kTable) {
    fmt::print("{}", table.to_string());
  }
  return broken;
}

Result<int> doctor(const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  return print_findings(look(settings), context) > 0 ? 1 : 0;
}

struct DoctorOptions {
  std::vector<std::string> hosts;
  std::string hostfile;
  std::optional<std::string> ports;
  bool cloud = false;
  std::string region;
};

Result<int> doctor_of_cloud(
    const DoctorOptions& options,
    const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(
      const std::string region, region_of({}, options.region, settings));
  return print_findings(look_at_cloud(region, settings), context) > 0 ? 3 : 0;
}

// "20000-20100".
Result<int> doctor_of_hosts(
    const DoctorOptions& options,
    const Context& context) {
  HostsQuestion question;
  if (!options.hosts.empty() && !options.hostfile.empty()) {
    return Error(
        ErrorCode::kInvalidInput, "--hosts and --hostfile exclude each other");
  }
  if (options.hosts.empty()) {
    LOCKSTEP_ASSIGN(
        const std::string text, os::real_files().read(options.hostfile));
    LOCKSTEP_ASSIGN(
        question.hosts, launch::parse_hostfile(text, options.hostfile));
  } else {
    std::string text;
    for (const std::string& word : options.hosts) {
      text += (text.empty() ? "" : ",") + word;
    }
    LOCKSTEP_ASSIGN(question.hosts, launch::parse_hosts(text));
  }
  LOCKSTEP_ASSIGN(question.ports, parse_port_range(options.ports));
  question.reach.program = own_program();
  return print_findings(look_at_hosts(question), context) > 0 ? 3 : 0;
}

}  // namespace

void add_doctor(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "what is there and lacking, and what fixes it");
  verb->footer("Example: lockstep doctor --hosts node1,node2");
  add_runs_dir(*verb, context);
  auto options = std::make_shared<DoctorOptions>();
  verb->add_option("--hosts", options->hosts, "look at these hosts")
      ->type_name("a,b");
  verb->add_option("--hostfile", options->hostfile, "look at those of a file")
      ->type_name("FILE");
  verb->add_option(
          "--ports", options->ports, "the range that is open between hosts")
      ->type_name("FIRST-LAST");
  verb->add_flag("--cloud", options->cloud, "look at the cloud");
  verb->add_option("--region", options->region, "of the cloud")->type_name("R");
  set_action(*verb, context, [&context, options]() -> Result<int> {
    if (options->cloud) {
      return doctor_of_cloud(*options, context);
    }
    if (!options->hosts.empty() || !options->hostfile.empty()) {
      return doctor_of_hosts(*options, context);
    }
    return doctor(context);
  });
}

}  // namespace lockstep::commands
