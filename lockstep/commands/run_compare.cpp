#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "lockstep/base/id.h"
#include "lockstep/base/to_stderr.h"
#include "lockstep/commands/report.h"
#include "lockstep/commands/run_kinds.h"
#include "lockstep/config/binder.h"
#include "lockstep/launch/shell.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/process.h"
#include "lockstep/record/comparison.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

constexpr int kInterrupted = 130;

struct CompareConfig {
  std::string name;
  std::map<std::string, std::string> compare;
  void bind(config::Binder& binder) {
    binder.field("name", name, "of the comparison");
    binder.field("compare", compare, "job files by the name of the variant");
  }
};

struct Ended {
  int code = 0;
  bool interrupted = false;
};

// The words of this command with another job file and name.
std::vector<std::string> variant_words(
    const Context& context,
    const std::string& file,
    const os::Path& variant,
    const std::string& name) {
  std::vector<std::string> words = {own_program().string()};
  bool replaced = false;
  for (size_t i = 0; i < context.words.size(); ++i) {
    const std::string& word = context.words[i];
    if (word == "--name") {
      ++i;
    } else if (!word.starts_with("--name=")) {
      words.push_back(!replaced && word == file ? variant.string() : word);
      replaced = replaced || word == file;
    }
  }
  words.insert(words.end(), {"--name", name});
  return words;
}

Result<Ended> run_child(
    const std::vector<std::string>& argv,
    launch::StopSignals& signals,
    int output = -1) {  // of both kinds; -1: ours
  os::SpawnOptions options;
  options.argv = argv;
  options.standard = {-1, output, output};
  options.environment = os::environment();
  options.die_with_parent = true;
  LOCKSTEP_ASSIGN(auto process, os::real_processes().spawn(options));
  const os::Descriptor exited(
      static_cast<int>(::syscall(SYS_pidfd_open, process->pid(), 0)));
  Ended ended;
  while (true) {
    LOCKSTEP_ASSIGN(const auto status, process->poll());
    if (status) {
      ended.code = status->signal != 0 ? 128 + status->signal : status->code;
      return ended;
    }
    std::array<pollfd, 2> wanted = {
        {{exited.get(), POLLIN, 0}, {signals.descriptor(), POLLIN, 0}}};
    ::poll(wanted.data(), wanted.size(), exited ? -1 : 100);
    if (const int number = signals.take(); number != 0) {
      ended.interrupted = true;
      LOCKSTEP_TRY(process->signal(number));
    }
  }
}

struct DryRun {
  bool interrupted = false;
  std::string refusal;  // what it says of a job that is wrong
};

Result<DryRun> run_dry(
    std::vector<std::string> argv,
    launch::StopSignals& signals) {
  const os::Descriptor said(::memfd_create("dry run", MFD_CLOEXEC));
  argv.emplace_back("--dry-run");
  LOCKSTEP_ASSIGN(const Ended ended, run_child(argv, signals, said.get()));
  DryRun done{.interrupted = ended.interrupted, .refusal = {}};
  if (ended.code != 2) {
    return done;
  }
  std::string& text = done.refusal;
  text.resize(static_cast<size_t>(::lseek(said.get(), 0, SEEK_END)));
  const ssize_t count = ::pread(said.get(), text.data(), text.size(), 0);
  text.resize(count < 0 ? 0 : static_cast<size_t>(count));
  return done;
}

std::vector<std::string> run_ids(const os::Path& folder) {
  std::vector<std::string> ids;
  if (auto runs = record::list_runs(folder)) {
    for (const auto& run : *runs) {
      ids.push_back(run.id());
    }
  }
  return ids;
}

record::ComparedRun read_variant(
    const std::string& name,
    const os::Path& folder,
    const std::vector<std::string>& before,
    int code) {
  record::ComparedRun one;
  one.name = name;
  one.state = code == 0 ? "done" : fmt::format("failed, exit code {}", code);
  for (const auto& id : run_ids(folder)) {
    if (std::ranges::find(before, id) != before.end()) {
      continue;
    }
    auto run = record::RunDirectory::existing(folder / id);
    if (!run) {
      continue;
    }
    one.run = std::move(*run);
    if (const auto report = make_report(*one.run)) {
      one.seconds = report->seconds;
      one.cost = report->cost;
      if (code != 0) {
        one.state = fmt::format("{} ({})", report->state_name(), one.state);
      }
    }
    break;
  }
  return one;
}

Result<CompareConfig> read_config(const std::string& file) {
  LOCKSTEP_ASSIGN(const auto tree, config::load_yaml(file));
  CompareConfig defaults;
  defaults.name = fs::path(file).stem().string();
  LOCKSTEP_ASSIGN(auto config, config::read<CompareConfig>(tree, defaults));
  if (config.compare.size() < 2) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "{}: compare has {} variant{}: nothing to compare",
                   file,
                   config.compare.size(),
                   config.compare.size() == 1 ? "" : "s"))
        .with_fix("compare: {ddp: a.yaml, fsdp: b.yaml}");
  }
  const auto beside = fs::path(file).parent_path();
  for (auto& [name, job] : config.compare) {
    const auto path = beside / job;
    std::error_code ignored;
    if (!fs::is_regular_file(path, ignored)) {
      return Error(
          ErrorCode::kNotFound,
          fmt::format(
              "{}: compare.{}: no job file '{}'", file, name, path.string()));
    }
    job = path.string();
  }
  return config;
}

}  // namespace

bool is_comparison(const std::string& file) {
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) {
    return false;
  }
  const auto tree = config::load_yaml(file);
  return tree && tree->find("compare") != nullptr;
}

Result<int> run_comparison(const RunOptions& options, const Context& context) {
  const std::string& file = options.words.front();
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const CompareConfig config, read_config(file));
  if (options.detach) {
    return Error(
               ErrorCode::kInvalidInput,
               "--detach: a comparison waits for its runs")
        .with_fix("nohup lockstep run " + file + " &");
  }
  const std::string name = options.name.empty() ? config.name : options.name;
  const os::Path runs = fs::absolute(settings.runs_dir).lexically_normal();
  // Before any thread is there.
  launch::StopSignals signals;
  record::ComparisonInput input;
  input.name = name;
  input.command = "lockstep " + launch::shell_line(context.words);
  int worst = 0;
  bool interrupted = false;
  const auto words = [&](const std::string& variant, const std::string& job) {
    return variant_words(
        context, file, job, fmt::format("{}-{}", name, variant));
  };
  // All before the first: its time and money may be much.
  for (const auto& [variant, job] : config.compare) {
    if (options.dry_run) {
      break;
    }
    LOCKSTEP_ASSIGN(const auto dry, run_dry(words(variant, job), signals));
    if (!dry.refusal.empty()) {
      to_stderr("== {}: {}\n{}", variant, job, dry.refusal);
      return 2;
    }
    if (dry.interrupted) {
      return kInterrupted;
    }
  }
  for (const auto& [variant, job] : config.compare) {
    const auto before = run_ids(runs);
    const auto argv = words(variant, job);
    if (context.format() != OutputFormat::kQuiet) {
      to_stderr("== {}: {}\n", variant, job);
    }
    LOCKSTEP_ASSIGN(const Ended ended, run_child(argv, signals));
    if (ended.code == 2 && run_ids(runs) == before) {
      return 2;  // it has said what is wrong with the job
    }
    worst = worst == 0 ? ended.code : worst;
    if (!options.dry_run) {
      input.runs.push_back(read_variant(variant, runs, before, ended.code));
    }
    interrupted = ended.interrupted || signals.take() != 0;
    if (interrupted) {
      break;
    }
  }
  if (options.dry_run) {
    return worst;
  }
  const os::Path folder =
      runs / "comparisons" /
      make_run_id(name, static_cast<int64_t>(os::real_clock().unix_seconds()));
  LOCKSTEP_TRY(record::write_comparison(folder, input));
  if (context.format() != OutputFormat::kQuiet) {
    const std::string line =
        fmt::format("comparison: {}\n", (folder / "logbook.md").string());
    std::fputs(
        line.c_str(),
        context.format() == OutputFormat::kJson ? stderr : stdout);
  }
  return interrupted ? kInterrupted : worst;
}

}  // namespace lockstep::commands
