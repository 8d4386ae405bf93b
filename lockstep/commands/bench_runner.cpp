#include "lockstep/commands/bench_runner.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <set>
#include <span>

#include "lockstep/launch/run_state.h"
#include "lockstep/launch/stop_signals.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/process.h"
#include "lockstep/record/event_log.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::commands {
namespace {

using economics::Standing;
using std::chrono::seconds;

constexpr int kLookMilliseconds = 50;
// After the stop signal: a second one ends the run at once, then SIGKILL.
constexpr Duration kAskAgain = seconds(15);
constexpr Duration kKill = seconds(60);
// One that gives machines back is left to it; their leases end them if it
// hangs.
constexpr Duration kGiveBack = std::chrono::minutes(10);

// The last "lockstep: ..." line of a log.
std::string told_error(const os::Path& log) {
  const auto text = os::real_files().read(log);
  constexpr std::string_view kMark = "lockstep: ";
  if (!text) {
    return "";
  }
  size_t at = text->rfind(kMark);
  while (at != std::string::npos && at > 0 && (*text)[at - 1] != '\n') {
    at = text->rfind(kMark, at - 1);
  }
  if (at == std::string::npos) {
    return "";
  }
  at += kMark.size();
  return text->substr(at, text->find('\n', at) - at);
}

// A probe with its process.
struct Live {
  Probe* probe = nullptr;
  os::Path runs;
  std::set<os::Path> before;  // runs of an earlier bench in the same folder
  std::unique_ptr<os::Process> process;
  std::unique_ptr<record::EventReader> reader;
  std::optional<os::Instant> stopped;
  int signals = 0;
};

class Bench {
 public:
  Bench(
      Candidates& candidates,
      const BenchRunnerOptions& options,
      launch::StopSignals& signals)
      : candidates_(candidates),
        options_(options),
        signals_(signals),
        priced_(all_priced(candidates.list())) {}

  ~Bench() {
    // After an error half way.
    for (Live& live : lives_) {
      if (live.process) {
        (void)live.process->signal(SIGTERM);
        const auto deadline = os::Deadline::after(
            live.probe->candidate.is_rented ? kGiveBack : kAskAgain);
        if (!live.process->wait(deadline)) {
          (void)live.process->signal(SIGKILL);
          (void)live.process->wait(os::Deadline::after(seconds(5)));
        }
      }
    }
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  Result<BenchOutcome> run() {
    const size_t count = candidates_.list().size();
    outcome_.probes.resize(count);
    lives_.resize(count);
    for (size_t i = 0; i < count; ++i) {
      LOCKSTEP_TRY(start(i));
    }
    while (std::ranges::any_of(
        lives_, [](const Live& live) { return live.process != nullptr; })) {
      look();
      LOCKSTEP_TRY(read_events());
      rule();
      LOCKSTEP_TRY(end_processes());
    }
    for (size_t i = 0; i < count; ++i) {
      LOCKSTEP_TRY(candidates_.release(i));
    }
    return std::move(outcome_);
  }

 private:
  static double now() { return os::real_clock().unix_seconds(); }

  void say(const std::string& line) const {
    if (!options_.quiet) {
      std::fputs((line + "\n").c_str(), stderr);
    }
  }

  Result<void> start(size_t i) {
    Probe& probe = outcome_.probes[i];
    Live& live = lives_[i];
    live.probe = &probe;
    probe.candidate = candidates_.list()[i];
    std::string file = probe.candidate.name;
    std::ranges::replace_if(
        file, [](char c) { return c == '/' || c == ':'; }, '_');
    live.runs = options_.folder / "runs" / file;
    probe.log = options_.folder / "logs" / (file + ".log");
    LOCKSTEP_TRY(os::real_files().make_directories(live.runs));
    LOCKSTEP_ASSIGN(const auto before, record::list_runs(live.runs));
    for (const record::RunDirectory& run : before) {
      live.before.insert(run.path());
    }
    LOCKSTEP_TRY(os::real_files().make_directories(probe.log.parent_path()));
    probe.started = now();
    auto placed = candidates_.run_options(i);
    if (!placed) {
      end(i, Standing::kFailed, placed.error().to_string());
      return {};
    }
    os::SpawnOptions spawn;
    spawn.argv = {options_.program.string(), "run"};
    const auto add = [&](const std::vector<std::string>& words) {
      spawn.argv.insert(spawn.argv.end(), words.begin(), words.end());
    };
    add(options_.words);
    add(options_.passed);
    add(*placed);
    add(
        {"--name",
         "probe",
         "--runs-dir",
         live.runs.string(),
         "--grace",
         "5s",
         "--output",
         "quiet",
         "-y"});
    spawn.environment = os::environment();
    spawn.output = probe.log;
    spawn.die_with_parent = true;
    LOCKSTEP_ASSIGN(live.process, os::real_processes().spawn(spawn));
    return {};
  }

  void look() {
    pollfd wanted = {signals_.descriptor(), POLLIN, 0};
    ::poll(&wanted, 1, kLookMilliseconds);
    if (const int number = signals_.take(); number != 0) {
      outcome_.interrupted = true;
      for (size_t i = 0; i < lives_.size(); ++i) {
        end(i, Standing::kCapped, "the bench was interrupted");
      }
    }
  }

  Result<void> read_events() {
    for (Live& live : lives_) {
      Probe& probe = *live.probe;
      if (!live.reader && live.process) {
        LOCKSTEP_ASSIGN(const auto runs, record::list_runs(live.runs));
        const auto own = std::ranges::find_if(runs, [&](const auto& run) {
          return !live.before.contains(run.path());
        });
        if (own == runs.end()) {
          continue;
        }
        probe.run = own->path();
        probe.events = own->events();
        live.reader = std::make_unique<record::EventReader>(probe.events);
      }
      if (!live.reader) {
        continue;
      }
      bool news = false;
      // One that cannot be read now is read at the next look.
      (void)live.reader->poll([&](const wire::Event& event, const auto&) {
        probe.story.take(event);
        news = true;
      });
      if (news) {
        const size_t seen = probe.figures.seen;
        probe.figures = probe_figures(probe.story);
        probe.last_news = probe.figures.seen > seen ? now() : probe.last_news;
        if (probe.setup == 0 && probe.story.first_sign() > 0) {
          probe.first_news = now();
          // A rank's clock may differ from ours.
          probe.setup = std::clamp(
              probe.story.first_sign() - probe.started,
              0.0,
              probe.first_news - probe.started);
        }
      }
    }
    return {};
  }

  void rule() {
    const auto racers = as_racers(outcome_.probes, priced_, now());
    const auto rulings = economics::judge(racers, options_.race);
    for (size_t i = 0; i < rulings.size(); ++i) {
      Probe& probe = outcome_.probes[i];
      if (probe.standing != Standing::kRacing) {
        continue;
      }
      if (rulings[i].standing != Standing::kRacing) {
        end(i, rulings[i].standing, rulings[i].reason);
      } else if (
          now() - std::max(probe.started, probe.last_news) >
          to_seconds(options_.patience)) {
        end(i,
            Standing::kFailed,
            fmt::format(
                "no iteration within {}", format_duration(options_.patience)));
      }
    }
  }

  // From racing to another standing; its process is asked to stop.
  void end(size_t i, Standing standing, const std::string& reason) {
    Probe& probe = outcome_.probes[i];
    if (probe.standing != Standing::kRacing) {
      return;
    }
    probe.standing = standing;
    probe.reason = reason;
    say(fmt::format(
        "{}: {} after {} iteration{}",
        probe.candidate.name,
        reason,
        probe.figures.seen,
        probe.figures.seen == 1 ? "" : "s"));
    if (lives_[i].process) {
      (void)lives_[i].process->signal(SIGTERM);
      lives_[i].stopped = os::real_clock().now();
      lives_[i].signals = 1;
    }
  }

  Result<void> end_processes() {
    for (size_t i = 0; i < lives_.size(); ++i) {
      Live& live = lives_[i];
      if (!live.process) {
        continue;
      }
      LOCKSTEP_ASSIGN(const auto status, live.process->poll());
      if (!status) {
        hasten(live);
        continue;
      }
      live.process.reset();
      LOCKSTEP_TRY(read_events());
      finish(*live.probe, *status);
    }
    return {};
  }

  static void hasten(Live& live) {
    if (!live.stopped) {
      return;
    }
    const auto waited = os::real_clock().now() - *live.stopped;
    if (live.probe->candidate.is_rented) {
      if (live.signals == 1 && waited > kGiveBack) {
        (void)live.process->signal(SIGKILL);
        live.signals = 3;
      }
    } else if (live.signals == 1 && waited > kAskAgain) {
      (void)live.process->signal(SIGTERM);
      live.signals = 2;
    } else if (live.signals == 2 && waited > kKill) {
      (void)live.process->signal(SIGKILL);
      live.signals = 3;
    }
  }

  // What its head wrote about beginning and end, against what ranks told.
  static void read_ends(Probe& probe) {
    if (probe.run.empty()) {
      return;
    }
    const auto run = record::RunDirectory::existing(probe.run);
    if (!run) {
      return;
    }
    const auto state = launch::read_run_state(*run);
    if (!state || !*state || (*state)->ended <= 0) {
      return;
    }
    const double most = probe.seconds;
    // The clock of the events may be another one.
    probe.figures.closing = std::clamp(probe.figures.closing, 0.0, most);
    probe.launch =
        std::clamp(probe.story.first_sign() - (*state)->started, 0.0, most);
    if (probe.story.end_time() > 0) {
      probe.end =
          std::clamp((*state)->ended - probe.story.end_time(), 0.0, most);
    }
  }

  void finish(Probe& probe, const os::ExitStatus& status) {
    probe.seconds = now() - probe.started;
    read_ends(probe);
    probe.dollars = probe.candidate.price
                        ? probe.candidate.price->dollars() *
                              probe.candidate.nodes * probe.seconds / 3600
                        : 0;
    probe.exit_code = status.code;
    if (probe.figures.seen > 0 && !probe.figures.iterations) {
      fail(
          probe,
          fmt::format(
              "none of its {} iterations has a possible time: a time is above "
              "0, and the first line of a pattern has none",
              probe.figures.seen));
      return;
    }
    if (probe.standing != Standing::kRacing) {
      return;
    }
    probe.finished = status.ok();
    if (probe.finished && probe.figures.iterations) {
      probe.standing = Standing::kEnough;
      probe.reason = "the job ended during its probe";
    } else if (probe.finished) {
      probe.standing = Standing::kFailed;
      probe.reason =
          "the job ended without showing an iteration: it must write events "
          "or have iterations: {pattern: ...} in its job file";
    } else {
      probe.standing = Standing::kFailed;
      const std::string told = told_error(probe.log);
      probe.reason = told.empty() ? status.to_string() : told;
    }
    say(fmt::format("{}: {}", probe.candidate.name, probe.reason));
  }

  void fail(Probe& probe, const std::string& reason) const {
    probe.standing = Standing::kFailed;
    probe.reason = reason;
    say(fmt::format("{}: {}", probe.candidate.name, reason));
  }

  Candidates& candidates_;
  const BenchRunnerOptions& options_;
  launch::StopSignals& signals_;
  bool priced_;
  BenchOutcome outcome_;
  std::vector<Live> lives_;
};

// What an event may take from a rank on a busy host to us: time that says
// nothing about its iterations.
constexpr double kNewsLag = 1;  // second

double hourly_price(const Candidate& candidate) {
  return candidate.price->dollars() * candidate.nodes;
}

// Over the first `common` steps, without the very first.
std::optional<economics::Estimate> over_steps(
    const std::vector<double>& seconds,
    size_t common) {
  const size_t end =
      common == 0 ? seconds.size() : std::min(common, seconds.size());
  const size_t begin = end > 1 ? 1 : 0;
  return economics::estimate(
      std::span<const double>(seconds).subspan(begin, end - begin));
}

economics::Racer
as_racer(const Probe& probe, bool priced, double now, size_t common) {
  const ProbeFigures& figures = probe.figures;
  economics::Racer racer;
  racer.dollars_per_hour = priced ? hourly_price(probe.candidate) : 1;
  racer.standing = probe.standing;
  racer.reached = static_cast<double>(figures.seen);
  if (figures.seen == 0 && probe.first_news > 0) {
    racer.pending = std::max(0.0, now - probe.first_news - kNewsLag);
  }
  racer.iteration = over_steps(figures.seconds, common);
  // Nodes that do more samples an iteration are not slower for it.
  racer.samples = figures.samples > 0 ? figures.samples : 1;
  // A new phase is measured anew, but not without end.
  if (figures.iterations && figures.iterations->phases.size() > 1) {
    racer.reached = std::max(
        static_cast<double>(figures.iterations->present.size()),
        racer.reached / 4);
  }
  const double seconds =
      probe.seconds > 0 ? probe.seconds : now - probe.started;
  racer.dollars = priced ? racer.dollars_per_hour * seconds / 3600 : 0;
  return racer;
}

}  // namespace

bool all_priced(const std::vector<Candidate>& candidates) {
  return std::ranges::all_of(candidates, [](const Candidate& candidate) {
    return candidate.price.has_value();
  });
}

std::vector<economics::Racer>
as_racers(const std::vector<Probe>& probes, bool priced, double now) {
  size_t common = 0;
  for (const Probe& probe : probes) {
    const size_t steps = probe.figures.seconds.size();
    const bool out = probe.standing == Standing::kLost ||
                     probe.standing == Standing::kFailed;
    if (steps > 0 && !out) {
      common = common == 0 ? steps : std::min(common, steps);
    }
  }
  std::vector<economics::Racer> racers;
  for (const Probe& probe : probes) {
    racers.push_back(as_racer(probe, priced, now, common));
  }
  return racers;
}

double times_as_dear(const Probe& first, const Probe& second, bool priced) {
  const size_t common =
      std::min(first.figures.seconds.size(), second.figures.seconds.size());
  const economics::Racer a = as_racer(first, priced, 0, common);
  const economics::Racer b = as_racer(second, priced, 0, common);
  if (!a.iteration || !b.iteration) {
    return 0;
  }
  return (a.iteration->mean / a.samples * a.dollars_per_hour) /
         (b.iteration->mean / b.samples * b.dollars_per_hour);
}

Result<BenchOutcome> run_probes(
    Candidates& candidates,
    const BenchRunnerOptions& options,
    launch::StopSignals& signals) {
  return Bench(candidates, options, signals).run();
}

}  // namespace lockstep::commands
