#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/id.h"
#include "lockstep/base/to_stderr.h"
#include "lockstep/commands/cluster_table.h"
#include "lockstep/commands/interruptible.h"
#include "lockstep/commands/report.h"
#include "lockstep/commands/run_kinds.h"
#include "lockstep/config/binder.h"
#include "lockstep/launch/redaction.h"
#include "lockstep/launch/shell.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/process.h"
#include "lockstep/record/comparison.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kBadInput = 2;
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

// Where a child writes; -1: where we do.
struct Streams {
  int output = -1;
  int errors = -1;
};

// What a child says, until it has ended.
class Said {
 public:
  Said() : file_(::memfd_create("said", MFD_CLOEXEC)) {}
  int get() const { return file_.get(); }
  std::string text() const {
    const off_t size = std::max<off_t>(::lseek(file_.get(), 0, SEEK_END), 0);
    std::string text(static_cast<size_t>(size), '\0');
    const ssize_t count = ::pread(file_.get(), text.data(), text.size(), 0);
    text.resize(count < 0 ? 0 : static_cast<size_t>(count));
    return text;
  }

 private:
  os::Descriptor file_;
};

Result<Ended> run_child(
    const std::vector<std::string>& argv,
    launch::StopSignals& signals,
    const Streams& streams = {}) {
  os::SpawnOptions options;
  options.argv = argv;
  options.standard = {-1, streams.output, streams.errors};
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
  Ended ended;
  std::string said;  // the price of it, or what is wrong with it
};

Result<DryRun> run_dry(
    std::vector<std::string> argv,
    launch::StopSignals& signals) {
  const Said plan;
  const Said said;
  argv.emplace_back("--dry-run");
  LOCKSTEP_ASSIGN(
      const Ended ended, run_child(argv, signals, {plan.get(), said.get()}));
  return DryRun{ended, said.text()};
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

struct Variant {
  record::ComparedRun compared;
  json report;  // null: there is none
};

Variant read_variant(
    const std::string& name,
    const os::Path& folder,
    const std::vector<std::string>& before,
    int code) {
  Variant variant;
  record::ComparedRun& one = variant.compared;
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
      variant.report = report_json(*report);
      if (code != 0) {
        one.state = fmt::format("{} ({})", report->state_name(), one.state);
      }
    }
    break;
  }
  return variant;
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

void print_json(const json& told) {
  fmt::print("{}\n", told.dump(2, ' ', false, json::error_handler_t::replace));
}

class Comparison {
 public:
  Comparison(
      const RunOptions& options,
      const Context& context,
      Settings settings,
      CompareConfig config)
      : options_(options),
        context_(context),
        settings_(std::move(settings)),
        config_(std::move(config)),
        name_(options.name.empty() ? config_.name : options.name),
        runs_(fs::absolute(settings_.runs_dir).lexically_normal()) {}

  Result<int> run() {
    if (options_.dry_run) {
      return show_plans();
    }
    LOCKSTEP_ASSIGN(const std::optional<int> ended, look_ahead());
    if (ended) {
      return *ended;
    }
    return run_all();
  }

 private:
  bool is_json() const { return context_.format() == OutputFormat::kJson; }
  std::vector<std::string> words(
      const std::string& variant,
      const std::string& job) const {
    return variant_words(
        context_,
        options_.words.front(),
        job,
        fmt::format("{}-{}", name_, variant));
  }
  void headline(const std::string& variant, const std::string& job) const {
    if (context_.format() != OutputFormat::kQuiet) {
      to_stderr("== {}: {}\n", variant, job);
    }
  }
  Result<int> show_plans();
  Result<std::optional<int>> look_ahead();
  Result<bool> is_rented(const std::string& job) const;
  Result<bool> ask(const std::string& plans);
  Result<int> run_all();
  Result<void> write(const record::ComparisonInput& input, json variants);

  const RunOptions& options_;
  const Context& context_;
  const Settings settings_;
  const CompareConfig config_;
  const std::string name_;
  const os::Path runs_;
  launch::StopSignals signals_;  // before any thread is there
  bool has_consent_ = false;
};

Result<int> Comparison::show_plans() {
  int worst = 0;
  json variants = json::array();
  for (const auto& [variant, job] : config_.compare) {
    const Said plan;
    headline(variant, job);
    LOCKSTEP_ASSIGN(
        const Ended ended,
        run_child(
            words(variant, job), signals_, {is_json() ? plan.get() : -1, -1}));
    if (ended.code == kBadInput) {
      return kBadInput;  // it has said what is wrong with the job
    }
    worst = worst == 0 ? ended.code : worst;
    if (ended.interrupted || signals_.take() != 0) {
      return kInterrupted;
    }
    json told = json::parse(plan.text(), nullptr, false);
    variants.push_back(
        {{"name", variant},
         {"job", job},
         {"plan", told.is_discarded() ? json() : std::move(told)}});
  }
  if (is_json()) {
    print_json({{"name", name_}, {"variants", std::move(variants)}});
  }
  return worst;
}

// All before the first: its time and money may be much. A code when nothing is
// to run.
Result<std::optional<int>> Comparison::look_ahead() {
  std::string plans;
  for (const auto& [variant, job] : config_.compare) {
    LOCKSTEP_ASSIGN(const DryRun dry, run_dry(words(variant, job), signals_));
    const std::string told =
        fmt::format("== {}: {}\n{}", variant, job, dry.said);
    const int code = dry.ended.code;
    if (code == kBadInput) {
      to_stderr("{}", told);
      return std::optional<int>(code);
    }
    if (dry.ended.interrupted) {
      return std::optional<int>(kInterrupted);
    }
    if (options_.yes) {
      continue;
    }
    LOCKSTEP_ASSIGN(const bool costs, is_rented(job));
    if (!costs) {
      continue;
    }
    if (code != 0) {  // nobody can say yes to a price that is not told
      to_stderr("{}", told);
      return std::optional<int>(code);
    }
    plans += told;
  }
  if (plans.empty()) {
    return std::optional<int>();
  }
  LOCKSTEP_ASSIGN(has_consent_, ask(plans));
  if (!has_consent_) {
    to_stderr("nothing was made\n");
    return std::optional<int>(0);
  }
  return std::optional<int>();
}

Result<bool> Comparison::is_rented(const std::string& job) const {
  RunOptions options = options_;
  options.words.front() = job;
  LOCKSTEP_ASSIGN(
      const ResolvedJob resolved, resolve_job(options, context_, settings_));
  return resolved.job.resources.is_rented();
}

// Once for all: nobody may be there when the second begins.
Result<bool> Comparison::ask(const std::string& plans) {
  to_stderr("{}", plans);
  bool is_wanted = false;
  const auto question = [&]() -> Result<void> {
    LOCKSTEP_ASSIGN(is_wanted, may_proceed(false));
    return {};
  };
  TimeLimit limit;
  limit.before = "anything was made";
  LOCKSTEP_TRY(interruptible(signals_, question, {}, limit));
  return is_wanted;
}

Result<int> Comparison::run_all() {
  record::ComparisonInput input;
  input.name = name_;
  std::vector<std::string> shown = context_.words;
  for (const auto& [variant, file] : config_.compare) {
    if (const auto job = launch::load_job(file, {}, os::environment())) {
      shown = launch::redact(*job, std::move(shown));
    }
  }
  input.command = "lockstep " + launch::shell_line(shown);
  json variants = json::array();
  int worst = 0;
  bool interrupted = false;
  // Their reports are parts of ours.
  const os::Descriptor nowhere(
      is_json() ? ::open("/dev/null", O_WRONLY | O_CLOEXEC) : -1);
  for (const auto& [variant, job] : config_.compare) {
    const auto before = run_ids(runs_);
    auto argv = words(variant, job);
    if (has_consent_) {
      argv.emplace_back("-y");
    }
    headline(variant, job);
    LOCKSTEP_ASSIGN(
        const Ended ended, run_child(argv, signals_, {nowhere.get(), -1}));
    if (ended.code == kBadInput && run_ids(runs_) == before) {
      return kBadInput;  // it has said what is wrong with the job
    }
    worst = worst == 0 ? ended.code : worst;
    Variant one = read_variant(variant, runs_, before, ended.code);
    variants.push_back(
        {{"name", variant},
         {"state", one.compared.state},
         {"report", std::move(one.report)}});
    input.runs.push_back(std::move(one.compared));
    interrupted = ended.interrupted || signals_.take() != 0;
    if (interrupted) {
      break;
    }
  }
  LOCKSTEP_TRY(write(input, std::move(variants)));
  return interrupted ? kInterrupted : worst;
}

Result<void> Comparison::write(
    const record::ComparisonInput& input,
    json variants) {
  const auto now = static_cast<int64_t>(os::real_clock().unix_seconds());
  const os::Path folder = runs_ / "comparisons" / make_run_id(name_, now);
  LOCKSTEP_TRY(record::write_comparison(folder, input));
  const std::string logbook = (folder / "logbook.md").string();
  if (is_json()) {
    print_json(
        {{"name", name_},
         {"folder", folder.string()},
         {"logbook", logbook},
         {"variants", std::move(variants)}});
  } else if (context_.format() != OutputFormat::kQuiet) {
    fmt::print("comparison: {}\n", logbook);
  }
  return {};
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
  return Comparison(options, context, settings, config).run();
}

}  // namespace lockstep::commands
