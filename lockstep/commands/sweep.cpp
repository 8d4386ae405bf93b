#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/commands/command.h"
#include "lockstep/commands/run_plan.h"
#include "lockstep/commands/sweep_runner.h"
#include "lockstep/commands/sweep_table.h"
#include "lockstep/commands/table.h"
#include "lockstep/config/node.h"
#include "lockstep/launch/redaction.h"
#include "lockstep/os/process.h"
#include "lockstep/os/temporary_folder.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using config::Node;

struct SweepOptions {
  std::vector<std::string> words;  // JOB.yaml key=a,b ...
  std::string nodes = "1", procs = "1", scaling = "weak", out;
  int repeat = 3;
  std::string hosts, hostfile, launcher, container, workdir;
  std::optional<std::string> budget, price, timeout, grace;
  std::vector<std::string> envs;
  int retries = 0;
  bool dry_run = false, yes = false;
};

// All that is known before anything runs.
struct Sweep {
  launch::Job job;
  SweepSpec spec;
  std::vector<Configuration> grid;
  std::vector<std::string> fixed;             // key=value for every run
  std::map<std::string, std::string> places;  // {key} for every run
  std::vector<std::string> passed;            // options for `lockstep run`
  std::optional<Money> budget;
  os::Path folder;
};

const Node* find_path(const Node& node, std::string_view dotted) {
  const Node* at = &node;
  while (at != nullptr && !dotted.empty()) {
    const size_t dot = std::min(dotted.find('.'), dotted.size());
    at = at->find(dotted.substr(0, dot));
    dotted.remove_prefix(std::min(dot + 1, dotted.size()));
  }
  return at;
}

// The trainer's own word for a batch size that the job leaves to it.
Result<std::string> default_batch(const launch::Job& job) {
  const os::Path trainer = trainer_program();
  if (trainer.empty()) {
    return Error(ErrorCode::kNotFound, "lockstep-train is not there")
        .with_fix(
            "build it ('make build') or set LOCKSTEP_TRAINER_BIN to its path");
  }
  LOCKSTEP_ASSIGN(
      std::vector<std::string> argv, launch::job_command(job, trainer, 0));
  argv.emplace_back("--print-config");
  std::string form = (os::temporary_folder() / "sweep-XXXXXX").string();
  if (::mkdtemp(form.data()) == nullptr) {
    return os_error("cannot make a temporary folder", errno);
  }
  const os::Path folder = form;
  const auto asked = [&]() -> Result<std::string> {
    os::SpawnOptions options;
    options.argv = argv;
    options.environment = launch::without_launchers(os::environment());
    options.output = folder / "config.yaml";
    options.directory = job.workdir;
    LOCKSTEP_ASSIGN(auto process, os::real_processes().spawn(options));
    LOCKSTEP_ASSIGN(
        const auto status,
        process->wait(os::Deadline::after(std::chrono::minutes(1))));
    LOCKSTEP_ASSIGN(
        const std::string text, os::real_files().read(*options.output));
    if (!status.ok()) {
      return Error(
                 ErrorCode::kInvalidInput,
                 fmt::format("lockstep-train refuses the job: {}", text))
          .with_fix("correct the job, or give data.batch_size");
    }
    LOCKSTEP_ASSIGN(
        const Node tree, config::parse_yaml(text, "lockstep-train"));
    const Node* batch = find_path(tree, "data.batch_size");
    return batch == nullptr ? "0" : batch->text();
  }();
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return asked;
}

Result<std::vector<std::string>> batch_sizes(
    const launch::Job& job,
    const std::vector<std::string>& given) {
  std::vector<std::string> sizes = given;
  if (sizes.empty() && job.train.kind() != Node::Kind::kNull) {
    const Node* set = find_path(job.train, "data.batch_size");
    if (set != nullptr && set->kind() == Node::Kind::kScalar) {
      sizes.push_back(set->text());
    } else {
      LOCKSTEP_ASSIGN(std::string own, default_batch(job));
      sizes.push_back(std::move(own));
    }
  }
  for (const std::string& size : sizes) {
    const bool number =
        !size.empty() &&
        size.find_first_not_of("0123456789") == std::string::npos &&
        size.find_first_not_of('0') != std::string::npos;
    const bool automatic = job.train.kind() != Node::Kind::kNull &&
                           (size == "auto" || size.starts_with("auto:"));
    if (!number && !automatic && size != "0") {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "{}={}: a batch size is a number from 1", batch_key(job), size));
    }
  }
  return sizes.empty() ? std::vector<std::string>{"0"} : sizes;
}

void pass(std::vector<std::string>& words, const char* option, auto value) {
  const std::string text = fmt::to_string(value);
  if (!text.empty()) {
    words.emplace_back(option);
    words.push_back(text);
  }
}

// Each run would refuse it: better before the first one begins.
template <class T>
Result<void> pass_limit(
    std::vector<std::string>& words,
    const char* option,
    const std::optional<std::string>& text,
    Result<T> (*parse)(std::string_view)) {
  if (text) {
    LOCKSTEP_TRY(parse(*text).with_context(option));
    words.insert(words.end(), {option, *text});
  }
  return {};
}

Result<void> check_nodes(const SweepOptions& options, const Sweep& sweep) {
  const int most = std::ranges::max(sweep.spec.nodes);
  const auto& resources = sweep.job.resources;
  size_t hosts = resources.hosts.size();
  if (!options.hosts.empty()) {
    hosts = static_cast<size_t>(std::ranges::count(options.hosts, ',')) + 1;
  }
  const bool elsewhere =
      !options.hostfile.empty() || !resources.hostfile.empty() ||
      !resources.cluster.empty() || options.launcher == "slurm" ||
      resources.launcher == "slurm";
  if (most == 1 || (hosts == 0 && elsewhere)) {
    return {};
  }
  if (static_cast<size_t>(most) > hosts) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "--nodes {}: {} host{} given",
                   options.nodes,
                   hosts == 0 ? "no" : std::to_string(hosts),
                   hosts == 1 ? " is" : "s are"))
        .with_fix("give as many with --hosts a,b,c or --hostfile F");
  }
  return {};
}

// Sorts the words into what is swept, what is the same for all, and what only
// takes a place in the command.
Result<Sweep> resolve(const SweepOptions& options, const Context& context) {
  if (context.has_program || options.words.empty()) {
    return Error(ErrorCode::kInvalidInput, "a sweep needs a job file")
        .with_fix("lockstep sweep JOB.yaml --procs 1,2,4");
  }
  Sweep sweep;
  const std::string& file = options.words.front();
  std::vector<SweepKey> keys;
  for (size_t i = 1; i < options.words.size(); ++i) {
    LOCKSTEP_ASSIGN(SweepKey key, parse_sweep_key(options.words[i]));
    keys.push_back(std::move(key));
  }
  // Once without keys, to know whose keys they are.
  LOCKSTEP_ASSIGN(
      const launch::Job plain, launch::load_job(file, {}, os::environment()));
  std::vector<std::string> batches;
  for (SweepKey& key : keys) {
    if (key.key == batch_key(plain)) {
      batches = std::move(key.values);
    } else if (key.values.size() > 1) {
      sweep.spec.keys.push_back(std::move(key));
    } else if (takes_place(plain, key.key)) {
      sweep.places[key.key] = key.values[0];
    } else {
      sweep.fixed.push_back(key.key + "=" + key.values[0]);
    }
  }
  LOCKSTEP_ASSIGN(
      sweep.job, launch::load_job(file, sweep.fixed, os::environment()));
  LOCKSTEP_ASSIGN(sweep.spec.nodes, parse_counts(options.nodes, "--nodes"));
  LOCKSTEP_ASSIGN(sweep.spec.procs, parse_counts(options.procs, "--procs"));
  sweep.spec.scaling =
      options.scaling == "strong" ? Scaling::kStrong : Scaling::kWeak;
  LOCKSTEP_ASSIGN(sweep.spec.batch_sizes, batch_sizes(sweep.job, batches));
  LOCKSTEP_TRY(check_nodes(options, sweep));
  LOCKSTEP_ASSIGN(sweep.grid, make_grid(sweep.spec));
  for (const Configuration& one : sweep.grid) {
    LOCKSTEP_TRY(run_words(sweep.job, one, sweep.places));
  }
  pass(sweep.passed, "--hosts", options.hosts);
  pass(sweep.passed, "--hostfile", options.hostfile);
  pass(sweep.passed, "--launcher", options.launcher);
  pass(sweep.passed, "--container", options.container);
  pass(sweep.passed, "--workdir", options.workdir);
  LOCKSTEP_TRY(
      pass_limit(sweep.passed, "--timeout", options.timeout, parse_duration));
  LOCKSTEP_TRY(
      pass_limit(sweep.passed, "--grace", options.grace, parse_duration));
  LOCKSTEP_TRY(pass_limit(sweep.passed, "--price", options.price, parse_money));
  for (const std::string& variable : options.envs) {
    pass(sweep.passed, "--env", variable);
  }
  if (options.retries > 0) {
    pass(sweep.passed, "--retries", options.retries);
  }
  sweep.budget = sweep.job.budget;
  if (options.budget) {
    LOCKSTEP_ASSIGN(
        sweep.budget, parse_money(*options.budget).with_context("--budget"));
  }
  if (sweep.budget) {
    LOCKSTEP_ASSIGN(const Settings settings, context.settings());
    if (!options.price && !sweep.job.resources.price && !settings.price) {
      return Error(
                 ErrorCode::kInvalidInput,
                 "a budget needs the price of the machines")
          .with_fix("give --price 0.40 (dollars an hour) or resources.price");
    }
  }
  sweep.folder = options.out.empty()
                     ? os::Path("sweeps") /
                           fmt::format("{}-{}", sweep.job.name, options.scaling)
                     : os::Path(options.out);
  sweep.folder = fs::absolute(sweep.folder).lexically_normal();
  return sweep;
}

// What must be the same for repeats to stand in one file.
std::map<std::string, std::string> identity(const Sweep& sweep) {
  launch::Job job = sweep.job;
  job.budget.reset();  // says when to stop, not what runs
  std::map<std::string, std::string> same = {
      {"job", launch::job_yaml(job)},
      {"scaling", std::string(to_string(sweep.spec.scaling))}};
  for (const auto& [key, value] : sweep.places) {
    same["{" + key + "}"] = value;
  }
  for (size_t i = 0; i + 1 < sweep.passed.size(); i += 2) {
    const std::string& option = sweep.passed[i];
    if (option != "--price" && option != "--timeout" && option != "--grace") {
      same[option] += sweep.passed[i + 1] + " ";
    }
  }
  return same;
}

Result<void> print_plan(
    const Sweep& sweep,
    const SweepJournal& journal,
    const SweepRunner& runner,
    int repeat,
    OutputFormat format) {
  nlohmann::json rows = nlohmann::json::array();
  Table table({"nodes", "procs", "batch", "done", "to run", "command"});
  size_t left = 0;
  for (const Configuration& one : sweep.grid) {
    const size_t done = journal.done(one.stem()).size();
    const size_t wanted = static_cast<size_t>(repeat);
    const size_t open = wanted > done ? wanted - done : 0;
    left += open;
    LOCKSTEP_ASSIGN(
        const std::string command,
        runner.shown_command(one, static_cast<int>(done)));
    rows.push_back(
        {{"nodes", one.nodes},
         {"procs", one.procs},
         {"batch_size", one.batch_size},
         {"file", one.stem() + ".csv"},
         {"done", done},
         {"to_run", open},
         {"command", command}});
    table.add(
        {std::to_string(one.nodes),
         std::to_string(one.procs),
         one.batch_size == "0" ? "-" : one.batch_size,
         std::to_string(done),
         std::to_string(open),
         command});
  }
  if (format == OutputFormat::kJson) {
    const nlohmann::json result = {
        {"directory", sweep.folder.string()},
        {"to_run", left},
        {"configurations", std::move(rows)}};
    std::puts(
        result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
            .c_str());
  } else if (format == OutputFormat::kTable) {
    fmt::print(
        "{}\n{} run{} in {}\n",
        table.to_string(),
        left,
        left == 1 ? "" : "s",
        sweep.folder.string());
  }
  return {};
}

Result<int> run_sweep(const SweepOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(Sweep sweep, resolve(options, context));
  LOCKSTEP_ASSIGN(
      SweepJournal journal,
      SweepJournal::open(sweep.folder, identity(sweep), options.dry_run));
  SweepRunner runner(
      {.program = own_program(),
       .job_file = options.words.front(),
       .job = sweep.job,
       .fixed = sweep.fixed,
       .places = sweep.places,
       .options = sweep.passed,
       .hosts_given = !options.hosts.empty() || !options.hostfile.empty() ||
                      !options.launcher.empty() ||
                      !sweep.job.resources.hosts.empty() ||
                      !sweep.job.resources.hostfile.empty() ||
                      !sweep.job.resources.launcher.empty(),
       .repeat = options.repeat,
       .budget = sweep.budget,
       .quiet = context.format() == OutputFormat::kQuiet},
      journal);
  if (options.dry_run) {
    LOCKSTEP_TRY(
        print_plan(sweep, journal, runner, options.repeat, context.format()));
    return 0;
  }
  const auto refresh = [&]() -> Result<SweepTable> {
    SweepTable table = make_sweep_table(sweep.grid, journal);
    table.name = sweep.job.name;
    table.scaling = sweep.spec.scaling;
    table.repeat = options.repeat;
    table.command = "lockstep " + launch::shown_line(sweep.job, context.words);
    LOCKSTEP_TRY(write_sweep_files(table, sweep.folder));
    return table;
  };
  const auto update = [&]() -> Result<void> {
    LOCKSTEP_TRY(refresh());
    return {};
  };
  LOCKSTEP_ASSIGN(const int code, runner.run(sweep.grid, update));
  LOCKSTEP_ASSIGN(const SweepTable table, refresh());
  switch (context.format()) {
    case OutputFormat::kTable:
      fmt::print(
          "{}\ndirectory  {}\n", sweep_text(table), sweep.folder.string());
      break;
    case OutputFormat::kJson: {
      nlohmann::json result = sweep_json(table);
      result["directory"] = sweep.folder.string();
      result["exit_code"] = code;
      std::puts(
          result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)
              .c_str());
      break;
    }
    case OutputFormat::kQuiet:
      fmt::print("{}\n", sweep.folder.string());
      break;
  }
  std::fflush(stdout);
  return code;
}

}  // namespace

void add_sweep(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand(
      "sweep", "scaling and hyper-parameters: many runs, one table");
  verb->footer(
      "One process first, then nodes x procs x batch sizes x any other keys,\n"
      "each several times. The same command goes on where it stopped.\n\n"
      "Examples:\n"
      "  lockstep sweep JOB.yaml --procs 1,2,4 --repeat 3\n"
      "  lockstep sweep JOB.yaml --hosts a,b --nodes 1,2 --procs 1,2 \\\n"
      "    --scaling strong data.batch_size=64 optim.lr=1e-3,2e-3");
  auto options = std::make_shared<SweepOptions>();
  SweepOptions& o = *options;
  verb->add_option(
          "job", o.words, "job file, then key=a,b to sweep, key=a to set")
      ->type_name("JOB.yaml key=a,b");
  verb->add_option("--nodes,--nnodes", o.nodes, "node counts")
      ->type_name("1,2");
  verb->add_option(
          "--procs,--nproc-per-node,--nproc_per_node", o.procs, "ranks a node")
      ->type_name("1,2,4");
  verb->add_option("--repeat", o.repeat, "runs of each; default 3")
      ->check(CLI::Range(1, 100000))
      ->type_name("N");
  verb->add_option(
          "--scaling",
          o.scaling,
          "weak: the batch of a rank stays; strong: that of all together")
      ->check(CLI::IsMember({"weak", "strong"}))
      ->type_name("S");
  verb->add_option("--out", o.out, "folder; default: sweeps/NAME-SCALING")
      ->type_name("DIR");
  verb->add_option("--hosts", o.hosts, "hosts, the head first")
      ->type_name("a,b");
  verb->add_option("--hostfile", o.hostfile, "'host slots=N' lines")
      ->type_name("F");
  verb->add_option("--launcher", o.launcher, "how ranks are started")
      ->check(CLI::IsMember({"local", "ssh", "mpi", "slurm"}))
      ->type_name("L");
  verb->add_option("--container", o.container, "image for the ranks")
      ->type_name("I");
  verb->add_option("--env", o.envs, "variable for the ranks")
      ->type_name("K=V")
      ->allow_extra_args(false);
  verb->add_option("--workdir", o.workdir, "folder the ranks start in")
      ->type_name("DIR");
  verb->add_option("--timeout", o.timeout, "longest repeat; more is a failure")
      ->type_name("D");
  verb->add_option("--grace", o.grace, "from the stop signal to SIGKILL")
      ->type_name("D");
  verb->add_option("--retries", o.retries, "restarts after a failure")
      ->check(CLI::Range(0, 1000000))
      ->type_name("N");
  verb->add_option(
          "--budget", o.budget, "most dollars over all runs; exit code 4")
      ->type_name("USD");
  verb->add_option("--price", o.price, "dollars an hour and node")
      ->type_name("USD");
  verb->add_flag("--dry-run", o.dry_run, "list what would run, and stop");
  verb->add_flag("-y,--yes", o.yes, "do not ask");
  set_action(*verb, context, [&context, options]() {
    return run_sweep(*options, context);
  });
}

}  // namespace lockstep::commands
