#include "lockstep/train/closing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "lockstep/base/log.h"
#include "lockstep/record/csv.h"
#include "lockstep/record/event_log.h"
#include "lockstep/record/logbook.h"

namespace lockstep::train {
namespace {

struct Line {
  double time;
  std::string text;
};

Result<void> merge_events(const record::RunDirectory& run) {
  auto& files = os::real_files();
  std::vector<Line> lines;
  std::string timing = std::string(record::kTimingHeader) + "\n";
  LOCKSTEP_ASSIGN(const auto names, files.list(run.path() / "ranks"));
  for (const auto& name : names) {
    if (!name.ends_with(".jsonl")) {
      continue;
    }
    record::EventReader reader(run.path() / "ranks" / name);
    LOCKSTEP_TRY(
        reader.poll([&](const wire::Event& event, const std::string& line) {
          lines.push_back({event.time, line});
          if (const auto* one = std::get_if<wire::Iteration>(&event.body)) {
            timing += record::timing_line(event.rank, *one) + "\n";
          }
        }));
  }
  std::stable_sort(
      lines.begin(), lines.end(), [](const Line& a, const Line& b) {
        return a.time < b.time;
      });
  std::string merged;
  for (const auto& line : lines) {
    merged += line.text + "\n";
  }
  LOCKSTEP_TRY(files.write_atomic(run.events(), merged));
  return files.write_atomic(run.timing(), timing);
}

// As a shell takes it for one word.
std::string quoted(const std::string& word) {
  const bool plain = std::ranges::all_of(word, [](unsigned char c) {
    return std::isalnum(c) != 0 || std::strchr("_-+=.,:/@%", c) != nullptr;
  });
  if (plain && !word.empty()) {
    return word;
  }
  std::string text = "'";
  for (const char c : word) {
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return text + "'";
}

}  // namespace

void close_run(
    const record::RunDirectory& run,
    const std::string& recipe,
    const std::vector<std::string>& arguments) {
  record::LogbookInput input;
  input.name = recipe;
  input.command = "lockstep-train " + recipe;
  for (const auto& argument : arguments) {
    input.command += fmt::format(" {}", quoted(argument));
  }
  auto closed = merge_events(run);
  if (closed) {
    closed = record::write_logbook(run, input);
  }
  if (!closed) {
    log_warning("closing the run: " + closed.error().to_string());
  }
}

}  // namespace lockstep::train
