#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "lockstep/base/to_stderr.h"
#include "lockstep/commands/command.h"
#include "lockstep/commands/remote.h"
#include "lockstep/launch/masks.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/launch/tail.h"

namespace lockstep::commands {
namespace {

struct LogsOptions {
  std::string run = "last";
  std::optional<int> rank;
  bool follow = false;
};

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

// The run's directory, kept up to date while it lives elsewhere.
class Source {
 public:
  explicit Source(const record::RunDirectory& run) : run_(run) {}

  // Brings all that is there now; a head that does not answer is told once, and
  // what is here is shown.
  Result<void> look() {
    LOCKSTEP_ASSIGN(const auto state, launch::read_run_state(run_));
    state_ = state.value_or(launch::RunStateFile());
    const bool by_slurm = state_.launcher == "slurm";
    if (!by_slurm && (!state_.is_running() || !state_.is_remote())) {
      return {};
    }
    if (mirror_ == nullptr) {
      mirror_ = mirror_of(run_, state_);
    }
    while (true) {
      const auto complete =
          mirror_->update(os::Deadline::after(std::chrono::seconds(1)));
      if (!complete) {
        return refuse(complete.error());
      }
      if (*complete) {
        break;
      }
    }
    told_ = false;
    state_ = mirror_->state();
    return state_.is_running() ? Result<void>() : mirror_->fetch_all({});
  }

  bool running() const { return state_.is_running(); }
  bool is_remote() const { return mirror_ != nullptr; }
  int num_ranks() const { return state_.world_size; }

 private:
  Result<void> refuse(const Error& error) {
    if (!told_) {
      to_stderr("lockstep: {}; showing what is here\n", error.to_string());
    }
    told_ = true;
    os::real_clock().sleep_for(std::chrono::milliseconds(500));
    return {};
  }

  record::RunDirectory run_;
  launch::RunStateFile state_;
  std::unique_ptr<launch::Mirror> mirror_;
  bool told_ = false;
};

Result<int> show(const LogsOptions& options, const Context& context) {
  LOCKSTEP_ASSIGN(const Settings settings, context.settings());
  LOCKSTEP_ASSIGN(const auto run, find_run(settings, options.run));
  const launch::Masks masks = launch::Masks::read(run);
  Source source(run);
  LOCKSTEP_TRY(source.look());
  std::vector<int> ranks;
  std::vector<launch::Tail> tails;
  // Ranks that start later write later.
  const auto find_ranks = [&]() -> Result<void> {
    LOCKSTEP_ASSIGN(
        const auto found,
        chosen_ranks(
            run,
            source.running() && options.rank.value_or(0) < source.num_ranks()
                ? std::nullopt
                : options.rank));
    for (const int rank : found) {
      if (std::ranges::find(ranks, rank) == ranks.end() &&
          (!options.rank || rank == *options.rank)) {
        ranks.push_back(rank);
        tails.emplace_back(run.rank_log(rank));
      }
    }
    return {};
  };
  const auto print = [&](int rank, const std::vector<std::string>& lines) {
    for (const std::string& raw : lines) {
      const std::string line = masks.apply(raw);
      if (!options.rank && source.num_ranks() > 1) {
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
    const bool running = options.follow && source.running();
    LOCKSTEP_TRY(find_ranks());
    for (size_t i = 0; i < tails.size(); ++i) {
      do {
        print(ranks[i], tails[i].read(kBlock));
      } while (tails[i].left() > 0 && !std::ferror(stdout));
    }
    std::fflush(stdout);
    if (!running || std::ferror(stdout)) {
      break;
    }
    if (!source.is_remote()) {
      os::real_clock().sleep_for(kPause);
    }
    LOCKSTEP_TRY(source.look());
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
  verb->add_option("run", options->run, "id, name, start of one, or 'last'")
      ->type_name("RUN");
  verb->add_flag("-f,--follow", options->follow, "go on until the run ends");
  verb->add_option("--rank", options->rank, "only this one")->type_name("R");
  add_runs_dir(*verb, context);
  set_action(*verb, context, [&context, options]() {
    return show(*options, context);
  });
}

}  // namespace lockstep::commands
