#include <fmt/format.h>
#include <CLI/CLI.hpp>
#include <algorithm>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>

#include "lockstep/base/log.h"
#include "lockstep/base/nearest.h"
#include "lockstep/base/to_stderr.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/node_notices.h"
#include "lockstep/commands/renter.h"
#include "lockstep/commands/uploader.h"
#include "lockstep/launch/agent_main.h"
#include "lockstep/launch/container.h"
#include "lockstep/launch/head.h"
#include "lockstep/launch/keeper.h"

namespace lockstep::commands {
namespace {

// Everything after the first "--" is a program of the user's.
void split_program(Context& context, std::vector<std::string>& arguments) {
  const auto mark = std::ranges::find(context.words, "--");
  arguments.assign(context.words.begin(), mark);
  if (mark != context.words.end()) {
    context.has_program = true;
    context.program.assign(mark + 1, context.words.end());
  }
}

std::vector<std::string> verb_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* verb : app.get_subcommands(nullptr)) {
    names.push_back(verb->get_name());
    for (const std::string& alias : verb->get_aliases()) {
      names.push_back(alias);
    }
  }
  return names;
}

// The verb that the arguments name; empty: none. Options of the top may stand
// before it.
std::string named_verb(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--output") {
      ++i;
    } else if (!arguments[i].starts_with('-')) {
      return arguments[i];
    }
  }
  return "";
}

std::vector<std::string> accepted_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

const CLI::App* chosen(const CLI::App& app) {
  const auto verbs = app.get_subcommands();
  return verbs.empty() ? &app : chosen(*verbs.front());
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* verb = chosen(app);
  const auto extras = app.remaining(true);
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr ||
      extras.empty()) {
    return error.what();
  }
  const std::string& word = extras.front();
  if (!word.starts_with('-')) {
    return fmt::format("'{}' is one word too many", word);
  }
  std::vector<std::string> accepted = accepted_options(*verb);
  if (verb != &app) {
    std::ranges::move(accepted_options(app), std::back_inserter(accepted));
  }
  // `lockstep run train.py --lr 1`: as other launchers take it.
  const bool of_program = verb->get_name() == "run";
  return fmt::format(
      "unknown option '{}'; {}{}",
      word,
      suggest(word.substr(0, word.find('=')), accepted),
      of_program ? "; a program and its options come after '--': "
                   "lockstep run -- PROGRAM ARGS..."
                 : "");
}

void build(CLI::App& app, Context& context) {
  app.set_version_flag("--version", "lockstep " + version());
  app.add_option("--output", context.output, "table, json or quiet")
      ->check(CLI::IsMember({"table", "json", "quiet"}))
      ->type_name("FORMAT");
  app.add_flag("-v,--verbose", context.verbose, "log more, with places");
  app.require_subcommand(1);
  app.fallthrough();
  app.footer(
      "Examples:\n"
      "  lockstep run --procs 2 -- python3 train.py\n"
      "  lockstep run JOB.yaml trainer.max_epochs=1\n"
      "  lockstep report last\n"
      "Exit codes: 0 done, 1 the job failed, 2 bad command or file,\n"
      "3 machines failed, 4 budget or duration, 124 timeout, 130 interrupted.");
  add_run(app, context);
  add_sweep(app, context);
  add_bench(app, context);
  add_plan(app, context);
  add_ps(app, context);
  add_logs(app, context);
  add_attach(app, context);
  add_stop(app, context);
  add_report(app, context);
  add_doctor(app, context);
  add_data(app, context);
  add_up(app, context);
  add_status(app, context);
  add_ssh(app, context);
  add_exec(app, context);
  add_push(app, context);
  add_pull(app, context);
  add_scale(app, context);
  add_extend(app, context);
  add_image(app, context);
  add_down(app, context);
  add_prices(app, context);
  add_cost(app, context);
  add_audit(app, context);
  add_completion(app, context);
  // A subcommand takes over fallthrough only from an app that had it before.
  for (CLI::App* verb : app.get_subcommands(nullptr)) {
    verb->fallthrough();
    for (CLI::App* below : verb->get_subcommands(nullptr)) {
      below->fallthrough();
    }
  }
}

// Who asked for an answer and did not get it must hear that: a full disk, a
// reader that has gone.
constexpr int kNotWritten = 1;

int check_output(int code) {
  errno = 0;
  const bool is_flushed = std::fflush(stdout) == 0;
  if (is_flushed && std::ferror(stdout) == 0) {
    return code;
  }
  to_stderr(
      "lockstep: standard output cannot be written{}{}\n",
      errno != 0 ? ": " : "",
      errno != 0 ? std::strerror(errno) : "");
  return code == 0 ? kNotWritten : code;
}

// "data get": the verb and what stands before it.
std::string full_name(const CLI::App& verb) {
  const CLI::App* parent = verb.get_parent();
  return parent == nullptr ? "" : full_name(*parent) + verb.get_name() + " ";
}

}  // namespace

int run_command_line(int argc, char** argv) {
  // Words between our own processes. The keeper is on the way from command to
  // ranks: it needs no option tree.
  if ((argc == 3 || argc == 4) && std::string_view(argv[1]) == "keeper") {
    return launch::keeper_main(
        std::atoi(argv[2]),
        argc == 4 ? launch::KeeperEars::kDeaf : launch::KeeperEars::kOpen);
  }
  if (argc == 2 && std::string_view(argv[1]) == "head") {
    return launch::head_main(own_program());
  }
  if (argc == 2 && std::string_view(argv[1]) == "agent") {
    return launch::agent_main(own_program(), node_notices());
  }
  if (argc >= 3 && std::string_view(argv[1]) == "shim" &&
      std::string_view(argv[2]) == "--") {
    return launch::shim_main(own_program(), {argv + 3, argv + argc});
  }
  if (argc == 2 && std::string_view(argv[1]) == "far-end") {
    return far_end_main();
  }
  if (argc == 2 && std::string_view(argv[1]) == "uploader") {
    return uploader_main();
  }
  if (argc == 2 && std::string_view(argv[1]) == "renter") {
    return renter_main();
  }
  // Around a rank in a container, on its node.
  if (argc >= 4 && std::string_view(argv[1]) == "contain") {
    return launch::contain_main(argv[2], {argv + 4, argv + argc});
  }
  if (argc == 3 && std::string_view(argv[1]) == "uncontain") {
    return launch::uncontain_main(argv[2]);
  }
  Context context;
  context.started = os::real_clock().now();
  context.words.assign(argv + 1, argv + argc);
  std::vector<std::string> arguments;
  split_program(context, arguments);

  CLI::App app(
      "lockstep: distributed training for the least money", "lockstep");
  build(app, context);
  if (const std::string verb = named_verb(arguments); !verb.empty()) {
    const auto names = verb_names(app);
    if (std::ranges::find(names, verb) == names.end()) {
      to_stderr(
          "lockstep: unknown verb '{}'; {}\n", verb, suggest(verb, names));
      return 2;
    }
  }
  app.parse_complete_callback([&context] {
    LogOptions options;
    options.level = context.verbose ? LogLevel::kDebug : LogLevel::kInfo;
    init_log(options);
  });
  try {
    // CLI11 takes arguments from the back.
    std::ranges::reverse(arguments);
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {
      return check_output(app.exit(error));  // --help, --version
    }
    to_stderr(
        "lockstep: {}\nRun 'lockstep {}--help' for the options.\n",
        explain(app, error),
        full_name(*chosen(app)));
    return 2;
  } catch (const std::system_error& error) {
    // fmt throws where a file of C only remembers.
    if (std::ferror(stdout) == 0) {
      to_stderr("lockstep: {}\n", error.what());
    }
    return check_output(
        context.exit_code == 0 ? kNotWritten : context.exit_code);
  }
  return check_output(context.exit_code);
}

}  // namespace lockstep::commands
