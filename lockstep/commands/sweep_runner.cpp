#include "lockstep/commands/sweep_runner.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "lockstep/commands/report.h"
#include "lockstep/commands/run_plan.h"
#include "lockstep/launch/redaction.h"
#include "lockstep/launch/supervisor.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/process.h"
#include "lockstep/record/event_log.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

constexpr int kFailed = 1;
constexpr int kBadInput = 2;
constexpr int kMachines = 3;
constexpr int kCapped = 4;

// What one rank says about epoch 0, the best last.
struct RankTimes {
  std::optional<double> end;    // Unix seconds of its exit event
  double iterations = 0;        // sum over epoch 0
  std::optional<double> epoch;  // its epoch event
  double samples = 0;           // by its iterations
  double epoch_samples = 0;     // by its epoch events
};

// Seconds to the microsecond: more is noise, and files stay readable.
double rounded(double seconds) {
  return std::round(seconds * 1e6) / 1e6;
}

// A run of this folder, newest first, that was not there before.
std::optional<record::RunDirectory> new_run(
    const os::Path& folder,
    const std::vector<std::string>& before) {
  auto runs = record::list_runs(folder);
  if (!runs) {
    return std::nullopt;
  }
  for (auto& run : *runs) {
    if (std::ranges::find(before, run.id()) == before.end()) {
      return run;
    }
  }
  return std::nullopt;
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

std::vector<std::string> last_lines(const os::Path& log, size_t most) {
  const auto text = os::real_files().read(log);
  std::vector<std::string> lines;
  if (!text) {
    return lines;
  }
  size_t start = 0;
  while (start < text->size()) {
    const size_t end = std::min(text->find('\n', start), text->size());
    if (end > start) {
      lines.push_back(text->substr(start, end - start));
    }
    start = end + 1;
  }
  if (lines.size() > most) {
    lines.erase(lines.begin(), lines.end() - static_cast<long>(most));
  }
  return lines;
}

// The error a `lockstep run` ended with: its last "lockstep: ..." line.
std::string told_error(const os::Path& log) {
  constexpr size_t kMost = 50;
  const auto lines = last_lines(log, kMost);
  for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
    constexpr std::string_view kMark = "lockstep: ";
    if (line->starts_with(kMark)) {
      return line->substr(kMark.size());
    }
  }
  return lines.empty() ? "" : lines.back();
}

std::map<int, RankTimes> rank_times(const record::RunDirectory& run) {
  std::map<int, RankTimes> times;
  record::EventReader reader(run.events());
  const auto read =
      reader.poll([&](const wire::Event& event, const std::string&) {
        if (event.rank < 0) {
          return;
        }
        RankTimes& rank = times[event.rank];
        if (const auto* done = std::get_if<wire::Iteration>(&event.body)) {
          rank.iterations += done->epoch == 0 ? done->total : 0;
          rank.samples += static_cast<double>(done->samples);
        } else if (const auto* epoch = std::get_if<wire::Epoch>(&event.body)) {
          rank.epoch_samples += static_cast<double>(epoch->samples);
          if (epoch->epoch == 0) {
            rank.epoch = epoch->seconds;
          }
        } else if (std::holds_alternative<wire::Exit>(event.body)) {
          rank.end = event.time;
        }
      });
  if (!read) {
    times.clear();
  }
  return times;
}

}  // namespace

Result<Repeat> read_run(const record::RunDirectory& run, int ranks) {
  LOCKSTEP_ASSIGN(const Report report, make_report(run));
  Repeat repeat;
  repeat.run = run.id();
  repeat.total = rounded(report.seconds);
  repeat.samples_per_second = report.summary.samples_per_second;
  repeat.dollars = report.cost ? report.cost->dollars() : 0;
  repeat.exit_code = report.state ? report.state->exit_code : 0;
  repeat.reason = report.state ? report.state->detail : report.summary.failure;
  const double started =
      report.state ? report.state->started : report.summary.start;
  const auto times = rank_times(run);
  bool all_told = true;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto found = times.find(rank);
    const RankTimes one = found == times.end() ? RankTimes{} : found->second;
    // Programs that are read by patterns may tell epochs only.
    const double samples = one.samples > 0 ? one.samples : one.epoch_samples;
    repeat.samples += samples;
    all_told = all_told && samples > 0;
    if (one.epoch && *one.epoch > 0) {
      repeat.ranks.push_back(rounded(*one.epoch));
      repeat.sources.emplace_back("epoch");
    } else if (one.iterations > 0) {
      repeat.ranks.push_back(rounded(one.iterations));
      repeat.sources.emplace_back("iterations");
    } else {
      const double life = one.end ? *one.end - started : repeat.total;
      repeat.ranks.push_back(rounded(std::max(life, 0.0)));
      repeat.sources.emplace_back("life");
    }
  }
  if (!all_told) {
    repeat.samples = 0;  // part of the ranks says nothing about the work
  }
  return repeat;
}

void SweepRunner::say(const std::string& line) const {
  if (!options_.quiet) {
    std::fputs((line + "\n").c_str(), stderr);
  }
}

Result<std::vector<std::string>> SweepRunner::command(
    const Configuration& configuration,
    int number) const {
  std::vector<std::string> words = {
      options_.program.string(), "run", options_.job_file};
  words.insert(words.end(), options_.fixed.begin(), options_.fixed.end());
  LOCKSTEP_ASSIGN(
      std::vector<std::string> own,
      run_words(options_.job, configuration, options_.places));
  std::ranges::move(own, std::back_inserter(words));
  words.insert(words.end(), options_.options.begin(), options_.options.end());
  if (options_.hosts_given || configuration.nodes > 1) {
    words.insert(words.end(), {"--nodes", std::to_string(configuration.nodes)});
  }
  words.insert(
      words.end(),
      {"--procs",
       std::to_string(configuration.procs),
       "--name",
       fmt::format("{}-r{}", configuration.stem(), number),
       "--runs-dir",
       (journal_.folder() / "runs").string(),
       "--output",
       "quiet"});
  if (options_.budget) {
    const double left = options_.budget->dollars() - journal_.dollars();
    words.insert(words.end(), {"--budget", fmt::format("{:.9f}", left)});
  }
  return words;
}

Result<std::string> SweepRunner::shown_command(
    const Configuration& configuration,
    int number) const {
  LOCKSTEP_ASSIGN(auto words, command(configuration, number));
  words[0] = "lockstep";
  return launch::shown_line(options_.job, words);
}

Result<SweepRunner::Ended> SweepRunner::run_child(
    const std::vector<std::string>& argv,
    const os::Path& log,
    launch::StopSignals& signals) const {
  LOCKSTEP_TRY(os::real_files().make_directories(log.parent_path()));
  LOCKSTEP_TRY(os::real_files().remove(log));
  os::SpawnOptions options;
  options.argv = argv;
  options.environment = os::environment();
  options.output = log;
  // A killed sweep must not leave a run that nobody reads.
  options.die_with_parent = true;
  LOCKSTEP_ASSIGN(auto process, os::real_processes().spawn(options));
  const os::Descriptor ended(
      static_cast<int>(::syscall(SYS_pidfd_open, process->pid(), 0)));
  Ended result;
  result.log = log;
  for (;;) {
    LOCKSTEP_ASSIGN(const auto status, process->poll());
    if (status) {
      result.code = status->code;
      result.how = status->signal != 0 ? status->to_string() : "";
      return result;
    }
    std::array<pollfd, 2> wanted = {
        {{ended.get(), POLLIN, 0}, {signals.descriptor(), POLLIN, 0}}};
    ::poll(wanted.data(), wanted.size(), ended ? -1 : 100);
    if (const int number = signals.take(); number != 0) {
      result.interrupted = true;
      LOCKSTEP_TRY(process->signal(number));
    }
  }
}

Result<Repeat> SweepRunner::read_repeat(
    const Configuration& configuration,
    int number,
    const Ended& ended) const {
  Repeat repeat;
  const os::Path folder = journal_.folder() / "runs";
  std::vector<std::string> known;
  for (const Repeat& one : journal_.repeats()) {
    known.push_back(one.run);
  }
  if (const auto run = new_run(folder, known)) {
    LOCKSTEP_ASSIGN(repeat, read_run(*run, configuration.ranks()));
  }
  repeat.stem = configuration.stem();
  repeat.number = number;
  repeat.exit_code = ended.code;
  repeat.time = os::real_clock().unix_seconds();
  repeat.done = ended.code == 0 && ended.how.empty() && !repeat.run.empty();
  if (repeat.done) {
    repeat.reason.clear();
    return repeat;
  }
  if (!ended.how.empty()) {
    repeat.reason = "lockstep run: " + ended.how;
    repeat.exit_code = kFailed;
  } else if (repeat.reason.empty()) {
    repeat.reason = told_error(ended.log);
  }
  if (ended.interrupted) {
    repeat.exit_code = Repeat::kInterruptedCode;
    repeat.reason = "the sweep was interrupted";
  }
  return repeat;
}

// Runs that a sweep which was killed never wrote down: they end here, and what
// they cost counts.
Result<void> SweepRunner::close_orphans() {
  const os::Path folder = journal_.folder() / "runs";
  for (const std::string& id : run_ids(folder)) {
    if (journal_.knows(id)) {
      continue;
    }
    LOCKSTEP_ASSIGN(
        const auto run, record::RunDirectory::existing(folder / id));
    LOCKSTEP_ASSIGN(const auto state, launch::read_run_state(run));
    if (state && state->state == "running") {
      say(fmt::format("stopping {}, left by a sweep that was killed", id));
      os::SpawnOptions options;
      options.argv = {
          options_.program.string(), "stop", id, "--runs-dir", folder.string()};
      options.environment = os::environment();
      options.output = journal_.folder() / "logs" / "stop.log";
      LOCKSTEP_TRY(
          os::real_files().make_directories(journal_.folder() / "logs"));
      LOCKSTEP_ASSIGN(auto process, os::real_processes().spawn(options));
      LOCKSTEP_TRY(process->wait(os::Deadline::after(std::chrono::minutes(5))));
    }
    Repeat left;
    if (auto read = read_run(run, 1)) {
      left = std::move(*read);
    }
    left.run = id;
    left.stem = id.substr(0, id.rfind("-r"));
    left.exit_code = Repeat::kInterruptedCode;
    left.reason = "the sweep was killed";
    left.time = os::real_clock().unix_seconds();
    LOCKSTEP_TRY(journal_.add(std::move(left)));
  }
  return {};
}

Result<int> SweepRunner::run(
    const std::vector<Configuration>& grid,
    const std::function<Result<void>()>& refresh) {
  // Before any thread is there.
  launch::StopSignals signals;
  LOCKSTEP_TRY(close_orphans());
  size_t total = 0;
  for (const Configuration& one : grid) {
    const size_t done = journal_.done(one.stem()).size();
    total +=
        std::max<size_t>(static_cast<size_t>(options_.repeat), done) - done;
  }
  if (journal_.skipped() > 0) {
    say(fmt::format(
        "{} line{} of repeats.jsonl could not be read: not counted",
        journal_.skipped(),
        journal_.skipped() == 1 ? "" : "s"));
  }
  size_t begun = 0;
  int worst = 0;
  for (const Configuration& one : grid) {
    const int done = static_cast<int>(journal_.done(one.stem()).size());
    for (int number = done; number < options_.repeat; ++number) {
      if (options_.budget && journal_.dollars() >= options_.budget->dollars()) {
        say(fmt::format(
            "lockstep: the budget of {} is spent",
            format_money(*options_.budget)));
        return kCapped;
      }
      ++begun;
      LOCKSTEP_ASSIGN(const auto argv, command(one, number));
      LOCKSTEP_ASSIGN(
          const Ended ended,
          run_child(
              argv,
              journal_.folder() / "logs" /
                  fmt::format("{}-r{}.log", one.stem(), number),
              signals));
      LOCKSTEP_ASSIGN(Repeat repeat, read_repeat(one, number, ended));
      const bool refused = repeat.run.empty() && ended.code == kBadInput;
      if (refused) {
        return Error(
            ErrorCode::kInvalidInput,
            fmt::format("{}: {}", one.to_string(), repeat.reason));
      }
      const std::string what = fmt::format(
          "[{}/{}] {}, repeat {}", begun, total, one.to_string(), number);
      const bool capped = ended.code == kCapped &&
                          repeat.reason.find("budget") != std::string::npos;
      if (repeat.done) {
        say(fmt::format(
            "{}: {}", what, format_duration(from_seconds(repeat.total))));
      } else {
        say(fmt::format("{}: FAILED: {}", what, repeat.reason));
        worst = repeat.exit_code == kMachines && worst != kFailed ? kMachines
                                                                  : kFailed;
      }
      LOCKSTEP_TRY(journal_.add(std::move(repeat)));
      LOCKSTEP_TRY(refresh());
      if (ended.interrupted || signals.take() != 0) {
        say("lockstep: interrupted; the same command goes on from here");
        return Repeat::kInterruptedCode;
      }
      if (capped) {
        say(fmt::format(
            "lockstep: stopped by the budget of {} over all runs",
            format_money(*options_.budget)));
        return kCapped;
      }
    }
  }
  return worst;
}

}  // namespace lockstep::commands
