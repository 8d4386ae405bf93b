#include "lockstep/commands/sittings.h"

#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "lockstep/base/log.h"
#include "lockstep/launch/traffic.h"
#include "lockstep/os/clock.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

// Grace of the ranks, and fetching what they left.
constexpr Duration kStopPatience = std::chrono::minutes(10);
// Its name in the workdir of the next sitting.
constexpr const char* kResume = "lockstep-resume";

constexpr int kStopped = 130;

// What a sitting that failed said.
void tell_log(const os::Path& path) {
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    std::fputs((line + "\n").c_str(), stderr);
  }
}

void append_line(const os::Path& path, const std::string& line) {
  std::ofstream(path, std::ios::app) << line << '\n';
}

// Rows below the header that is there already.
void append_table(const os::Path& from, const os::Path& to) {
  std::ifstream rows(from);
  const bool is_new = !fs::exists(to);
  std::ofstream table(to, std::ios::app);
  std::string line;
  for (bool is_header = true; std::getline(rows, line); is_header = false) {
    if (!is_header || is_new) {
      table << line << '\n';
    }
  }
}

void copy_folder(const os::Path& from, const os::Path& to) {
  std::error_code ignored;
  fs::copy(
      from,
      to,
      fs::copy_options::recursive | fs::copy_options::overwrite_existing,
      ignored);
}

}  // namespace

Sittings::Sittings(launch::Job job, record::RunDirectory run, int ranks_a_node)
    : job_(std::move(job)),
      run_(std::move(run)),
      ranks_a_node_(ranks_a_node),
      sights_(ranks_a_node) {}

Sittings::~Sittings() {
  if (process_) {  // after an error half way
    (void)stop();
  }
}

Result<void> Sittings::start(
    const std::string& cluster,
    std::optional<Money> budget,
    std::optional<Duration> time) {
  launch::Job job = job_;
  job.budget = budget;
  job.max_duration = time;
  if (!checkpoint_.empty()) {
    job.file_mounts[kResume] = checkpoint_.string();
  }
  const os::Path folder = root() / std::to_string(++number_);
  LOCKSTEP_TRY(os::real_files().make_directories(folder));
  const os::Path file = folder / "job.yaml";
  std::ofstream(file) << launch::job_yaml(job);
  os::SpawnOptions spawn;
  spawn.argv = {
      own_program().string(),
      "run",
      file.string(),
      "--cluster",
      cluster,
      "--runs-dir",
      (folder / "runs").string(),
      "--output",
      "quiet",
      "-y"};
  if (!checkpoint_.empty()) {
    spawn.argv.push_back(fmt::format("trainer.resume={}", kResume));
  }
  spawn.environment = os::environment();
  spawn.output = folder / "run.log";
  sights_ = Sights(ranks_a_node_);
  sitting_.reset();
  reader_.reset();
  started_ = os::real_clock().unix_seconds();
  LOCKSTEP_ASSIGN(process_, os::real_processes().spawn(spawn));
  return {};
}

Result<std::optional<int>> Sittings::look() {
  LOCKSTEP_TRY(read_events());
  LOCKSTEP_ASSIGN(const auto status, process_->poll());
  if (!status) {
    return std::optional<int>();
  }
  LOCKSTEP_ASSIGN(const int code, finish(*status));
  return std::optional<int>(code);
}

Result<int> Sittings::stop() {
  LOCKSTEP_TRY(process_->signal(SIGTERM));
  const auto status = process_->wait(os::Deadline::after(kStopPatience));
  if (!status) {
    (void)process_->signal(SIGKILL);
    process_.reset();
    return Error(status.error()).with_context("a sitting does not end");
  }
  return finish(*status);
}

Result<void> Sittings::read_events() {
  if (!sitting_) {
    const os::Path runs = root() / std::to_string(number_) / "runs";
    LOCKSTEP_ASSIGN(const auto found, record::list_runs(runs));
    if (found.empty()) {
      return {};
    }
    sitting_ = found.front();
    reader_ = std::make_unique<record::EventReader>(sitting_->events());
  }
  return reader_->poll([&](const wire::Event& event, const std::string& line) {
    sights_.take(event);
    append_line(run_.events(), line);
  });
}

Result<int> Sittings::finish(const os::ExitStatus& status) {
  process_.reset();
  LOCKSTEP_TRY(read_events());
  collect();
  const int code = status.signal != 0 ? 128 + status.signal : status.code;
  if (code != 0 && code != kStopped) {
    tell_log(root() / std::to_string(number_) / "run.log");
  }
  return code;
}

void Sittings::collect() {
  if (!sitting_) {
    return;
  }
  traffic_.count += launch::run_bytes(*sitting_).count;
  append_table(sitting_->metrics(), run_.metrics());
  append_table(sitting_->timing(), run_.timing());
  copy_folder(sitting_->checkpoints(), run_.checkpoints());
  copy_folder(sitting_->samples(), run_.samples());
  copy_folder(sitting_->tensorboard(), run_.tensorboard());
  copy_folder(sitting_->path() / "ranks", run_.path() / "ranks");
  const os::Path last = run_.checkpoints() / "last.safetensors";
  if (fs::exists(last)) {
    checkpoint_ = fs::absolute(last);
  }
}

void Sittings::note(wire::EventBody body) {
  wire::Event event;
  event.time = os::real_clock().unix_seconds();
  event.rank = -1;
  event.body = std::move(body);
  append_line(run_.events(), wire::to_json(event));
}

}  // namespace lockstep::commands
