#include "lockstep/commands/past_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/base/crc32c.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/os/process.h"
#include "lockstep/record/event_log.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::optional<PastRun> read_past_run(
    const record::RunDirectory& run,
    const std::string& identity) {
  const auto text = os::real_files().read(run.job());
  if (!text) {
    return std::nullopt;
  }
  const auto job = launch::parse_job(*text, run.job().string(), {});
  const auto state = launch::read_run_state(run);
  if (!job || job_identity(*job) != identity || !state || !*state) {
    return std::nullopt;
  }
  ProbeStory story;
  record::EventReader reader(run.events());
  if (!reader.poll(
          [&](const wire::Event& event, const auto&) { story.take(event); })) {
    return std::nullopt;
  }
  PastRun past;
  past.figures = probe_figures(story);
  if (!past.figures.iterations) {
    return std::nullopt;
  }
  const launch::RunStateFile& known = **state;
  past.machine = known.hosts.empty() ? "local" : known.hosts.front();
  past.nodes = static_cast<int>(std::max<size_t>(known.hosts.size(), 1));
  past.dollars_per_hour = known.dollars_per_hour / past.nodes;
  past.started = known.started;
  past.setup = std::max(story.first_sign() - known.started, 0.0);
  past.ranks = std::max(story.world_size() / past.nodes, 1);
  past.finished = known.state == "done";
  if (past.finished) {
    past.seconds = known.ended - known.started;
  }
  // The clock of the events may be another one.
  const double most = std::max(known.ended - known.started, 0.0);
  past.end = std::min(past.figures.closing, most);
  if (story.end_time() > 0) {
    past.end += std::clamp(known.ended - story.end_time(), 0.0, most);
  }
  past.run = run.path();
  return past;
}

}  // namespace

std::string job_identity(const launch::Job& job) {
  launch::Job same = job;
  same.name.clear();
  same.resources = {};
  same.num_nodes.reset();
  same.procs_per_node.reset();
  same.budget.reset();
  same.max_duration.reset();
  same.outputs.clear();
  same.grace = launch::Job().grace;
  same.optimise = {};
  if (config::Node* trainer = same.train.find("trainer");
      trainer != nullptr && trainer->kind() == config::Node::Kind::kMap) {
    trainer->erase("rehearse");
    if (trainer->entries().empty()) {
      same.train.erase("trainer");
    }
  }
  return launch::job_yaml(same);
}

std::vector<PastRun> find_past_runs(
    const std::vector<os::Path>& roots,
    const launch::Job& job) {
  const std::string identity = job_identity(job);
  std::vector<PastRun> found;
  for (const os::Path& root : roots) {
    const auto runs = record::list_runs(root);
    if (!runs) {
      continue;
    }
    for (const record::RunDirectory& run : *runs) {
      if (auto past = read_past_run(run, identity)) {
        found.push_back(std::move(*past));
      }
    }
  }
  std::ranges::stable_sort(found, {}, &PastRun::started);
  return found;
}

std::vector<os::Path> bench_roots(const os::Path& benches) {
  std::vector<os::Path> roots;
  std::error_code ignored;
  for (const auto& bench : fs::directory_iterator(benches, ignored)) {
    std::error_code none;
    for (const auto& candidate :
         fs::directory_iterator(bench.path() / "runs", none)) {
      roots.push_back(candidate.path());
    }
  }
  std::ranges::sort(roots);
  return roots;
}

std::vector<KeptPrediction> read_predictions(const os::Path& file) {
  std::vector<KeptPrediction> kept;
  const auto text = os::real_files().read(file);
  if (!text) {
    return kept;
  }
  size_t start = 0;
  while (start < text->size()) {
    const size_t end = std::min(text->find('\n', start), text->size());
    const json line = json::parse(
        text->substr(start, end - start), nullptr, /*allow_exceptions=*/false);
    start = end + 1;
    if (!line.is_object()) {
      continue;
    }
    try {
      KeptPrediction one;
      line.at("time").get_to(one.time);
      line.at("job").get_to(one.job);
      line.at("machine").get_to(one.machine);
      line.at("nodes").get_to(one.nodes);
      line.at("seconds").get_to(one.seconds);
      line.at("dollars").get_to(one.dollars);
      kept.push_back(std::move(one));
    } catch (const json::exception&) {
      continue;  // of another version, or cut
    }
  }
  return kept;
}

Result<void> keep_predictions(
    const os::Path& file,
    const std::vector<KeptPrediction>& predictions) {
  LOCKSTEP_TRY(os::real_files().make_directories(file.parent_path()));
  LOCKSTEP_ASSIGN(auto appender, os::real_files().open_append(file));
  for (const KeptPrediction& one : predictions) {
    const json line = {
        {"time", one.time},
        {"job", one.job},
        {"machine", one.machine},
        {"nodes", one.nodes},
        {"seconds", one.seconds},
        {"dollars", one.dollars}};
    LOCKSTEP_TRY(appender->append(
        line.dump(-1, ' ', false, json::error_handler_t::replace) + "\n"));
  }
  return {};
}

std::vector<Comparison> compare_predictions(
    const std::vector<KeptPrediction>& predictions,
    const std::vector<PastRun>& runs,
    const std::string& job) {
  std::vector<Comparison> found;
  // The newest run first: it alone counts for its machine and node count.
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    const bool is_known = std::ranges::any_of(found, [&](const auto& one) {
      return one.machine == run->machine && one.nodes == run->nodes;
    });
    if (!run->finished || run->seconds <= 0 || is_known) {
      continue;
    }
    const KeptPrediction* last = nullptr;
    for (const KeptPrediction& one : predictions) {
      if (one.job == job && one.machine == run->machine &&
          one.nodes == run->nodes && one.time <= run->started) {
        last = &one;
      }
    }
    if (last != nullptr) {
      found.push_back({run->machine, run->nodes, last->seconds, run->seconds});
    }
  }
  return found;
}

std::string checksum_of(const std::string& text) {
  return fmt::format("{:08x}", crc32c(text));
}

}  // namespace lockstep::commands
