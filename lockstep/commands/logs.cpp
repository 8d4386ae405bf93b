#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "lockstep/commands/command.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/launch/tail.h"

namespace lockstep::commands {
namespace {

struct LogsOptions {
  std::string run = "last";
  std::optional<int> rank;
  bool follow = false;
};

bool is_running(const record::RunDirectory& run) {
  const auto state = launch::read_run_state(run);
  return state && *state && (*state)->state == "running";
}

// Every rank by its file, or the one that was asked for.
Result<std::vector<int>> chosen_ranks(
    const record::RunDirectory& run,
    const std::optional<int>& rank) {
  LOCKSTEP_ASSIGN(
      const auto names, os::real_files().list(run.path() / "ranks"));
  std::vector<int> ranks;
  for (const std::string& name : names) {
    char* end = nullptr;
    const long number = std::strtol(name.c_str(), &end, 10);
    if (end != name.c_str() && std::string_view(end) == ".log") {
      ranks.push_back(static_cast<int>(number));
    }
  }
  std::ranges::sort(ranks);
  if (rank && std::ranges::find(ranks, *rank) == ranks.end()) {
    return Error(
        ErrorCode::kNotFound,
        fmt::format(
            "run {} has no log of rank {}; it has {} rank{}",
            run.id(),
            *rank,
            ranks.size(),
            ranks.size() == 1 ? "" : "s"));
  }
  return rank ? std::vector<int>{*rank} : ranks;
}

Result<int> show(const LogsOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const auto run, find_run(settings, options.run));
  LOCKSTEP_ASSIGN(const auto ranks, chosen_ranks(run, options.rank));
  std::vector<launch::Tail> tails;
  for (const int rank : ranks) {
    tails.emplace_back(run.rank_log(rank));
  }
  const auto print = [&](int rank, const std::vector<std::string>& lines) {
    for (const std::string& line : lines) {
      if (ranks.size() > 1) {
        fmt::print("[r{}] ", rank);
      }
      std::fwrite(line.data(), 1, line.size(), stdout);
      std::fputc('\n', stdout);
    }
  };
  constexpr size_t kBlock = 1 << 20;
  // A file is polled rather than watched: run directories may be on NFS.
  constexpr auto kPause = std::chrono::milliseconds(100);
  while (true) {
    const bool running = options.follow && is_running(run);
    for (size_t i = 0; i < tails.size(); ++i) {
      do {
        print(ranks[i], tails[i].read(kBlock));
      } while (tails[i].left() > 0 && !std::ferror(stdout));
    }
    std::fflush(stdout);
    if (!running || std::ferror(stdout)) {
      break;
    }
    os::real_clock().sleep_for(kPause);
  }
  for (size_t i = 0; i < tails.size(); ++i) {
    print(ranks[i], tails[i].rest());
  }
  return 0;
}

}  // namespace

void add_logs(CLI::App& app, Context& context) {
  CLI::App* verb = app.add_subcommand("logs", "what the ranks of a run wrote");
  verb->footer("Example: lockstep logs last -f --rank 0");
  auto options = std::make_shared<LogsOptions>();
  verb->add_option("run", options->run, "id, the start of one, or 'last'")
      ->type_name("RUN");
  verb->add_flag("-f,--follow", options->follow, "go on until the run ends");
  verb->add_option("--rank", options->rank, "only this one")->type_name("R");
  add_runs_dir(*verb, context);
  set_action(*verb, context, [&context, options]() {
    return show(*options, context);
  });
}

}  // namespace lockstep::commands
