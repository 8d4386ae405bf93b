#pragma once

// What all verbs share: the options that are the same everywhere, the user's
// settings, and how a verb ends. A verb is one file with one add_ function
// that puts its subcommand into the tree; its callback sets exit_code.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"
#include "lockstep/record/run_directory.h"

// A verb's own file includes CLI11, whose header alone takes five seconds.
namespace CLI {
class App;
}

namespace lockstep::commands {

enum class OutputFormat { kTable, kJson, kQuiet };

// ~/.config/lockstep/config.yaml.
struct Settings {
  std::string runs_dir = "runs";
  std::optional<Money> price;                 // dollars an hour of this machine
  std::string region;                         // of the cloud
  std::string key;                            // private key file for it
  std::vector<std::string> regions;           // that audits look at
  std::map<std::string, std::string> prices;  // an hour, by type or host
  std::optional<Money> cap;                   // over all runs of cap_period
  Duration cap_period = std::chrono::hours(24 * 30);
  double written = 0;  // Unix seconds: when the file last changed
};
// An absent file gives the defaults.
Result<Settings> load_settings(const os::Path& file);
os::Path settings_file();

struct Context {
  os::Instant started;               // of the process
  std::vector<std::string> words;    // the command line, without argv[0]
  std::vector<std::string> program;  // what followed "--"
  bool has_program = false;          // there was a "--"
  std::string output = "table";
  bool verbose = false;
  std::string runs_dir;  // from the command line; empty: the user's
  int exit_code = 0;

  OutputFormat format() const;
  // The user's settings with the command line over them.
  Result<Settings> settings() const;
};

// Exit codes of docs/errors.md for an error, which goes to stderr.
int fail(const Error& error);

// What a verb does: the exit code, or an error for fail().
void set_action(
    CLI::App& verb,
    Context& context,
    std::function<Result<int>()> action);

// A run by id, by its name (the newest of that name), by the start of an id
// that is unique, or by path; "last" is the newest. The error names near ones.
Result<record::RunDirectory> find_run(
    const Settings& settings,
    const std::string& name);
// --runs-dir on a verb.
void add_runs_dir(CLI::App& verb, Context& context);
// The file of this program, and lockstep-train: $LOCKSTEP_TRAINER_BIN, beside
// this program, or in PATH; empty when it is nowhere.
os::Path own_program();
os::Path trainer_program();

void add_run(CLI::App& app, Context& context);
void add_sweep(CLI::App& app, Context& context);
void add_bench(CLI::App& app, Context& context);
void add_plan(CLI::App& app, Context& context);
void add_report(CLI::App& app, Context& context);
void add_ps(CLI::App& app, Context& context);
void add_logs(CLI::App& app, Context& context);
void add_attach(CLI::App& app, Context& context);
void add_stop(CLI::App& app, Context& context);
void add_doctor(CLI::App& app, Context& context);
void add_data(CLI::App& app, Context& context);
void add_prices(CLI::App& app, Context& context);
void add_audit(CLI::App& app, Context& context);
void add_up(CLI::App& app, Context& context);
void add_status(CLI::App& app, Context& context);
void add_ssh(CLI::App& app, Context& context);
void add_exec(CLI::App& app, Context& context);
void add_push(CLI::App& app, Context& context);
void add_pull(CLI::App& app, Context& context);
void add_scale(CLI::App& app, Context& context);
void add_extend(CLI::App& app, Context& context);
void add_image(CLI::App& app, Context& context);
void add_down(CLI::App& app, Context& context);
void add_cost(CLI::App& app, Context& context);
void add_completion(CLI::App& app, Context& context);

// `lockstep far-end`: serves one ssh session.
int far_end_main();

// The whole command line; the exit code.
int run_command_line(int argc, char** argv);

}  // namespace lockstep::commands
