#include "lockstep/record/logbook_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <utility>

#include "lockstep/record/logbook_text.h"

namespace lockstep::record {
namespace {

template <class... Values>
void add(
    std::string& text,
    fmt::format_string<Values...> form,
    Values&&... values) {
  text += fmt::format(form, std::forward<Values>(values)...);
}

// A link when the file lies in the run directory, else the path itself.
std::string link(const RunDirectory& run, const std::string& path) {
  std::error_code error;
  const auto root = std::filesystem::absolute(run.path(), error);
  const auto whole = std::filesystem::absolute(path, error);
  auto relative =
      whole.lexically_normal().lexically_relative(root.lexically_normal());
  if (relative.empty() || *relative.begin() == "..") {
    // Written as seen from the run directory?
    if (os::Path(path).is_relative() &&
        std::filesystem::exists(run.path() / path, error)) {
      relative = path;
    } else {
      return cell(path);
    }
  }
  return fmt::format("[{}]({})", cell(relative.string()), relative.string());
}

}  // namespace

std::string checkpoints_section(
    const RunDirectory& run,
    const RunSummary& summary) {
  std::string text;
  if (summary.starts == 0 && summary.checkpoints.empty()) {
    return text;  // a program that does not say what it stores
  }
  add(text, "## Checkpoints\n\n");
  if (summary.checkpoints.empty()) {
    add(text, "None were written.\n\n");
    return text;
  }
  // A file that is replaced stands once, as it is now.
  std::map<std::string, std::pair<const wire::Checkpoint*, int>> files;
  for (const auto& checkpoint : summary.checkpoints) {
    auto& [last, times] = files[checkpoint.path];
    last = &checkpoint;
    ++times;
  }
  add(text,
      "| file | step | reason | seconds to write | times written |\n"
      "|---|---:|---|---:|---:|\n");
  constexpr size_t kMost = 50;
  size_t shown = 0;
  for (const auto& [path, written] : files) {
    if (shown++ < kMost) {
      add(text,
          "| {} | {} | {} | {:.2f} | {} |\n",
          link(run, path),
          written.first->step,
          cell(written.first->reason),
          written.first->seconds,
          written.second);
    }
  }
  if (files.size() > kMost) {
    add(text, "\n{} more files are in the events.\n", files.size() - kMost);
  }
  add(text, "\n");
  return text;
}

std::string samples_section(const RunDirectory& run) {
  std::string text;
  std::map<std::string, std::string> last;
  auto names = os::real_files().list(run.samples());
  for (const auto& name : names ? *names : std::vector<std::string>()) {
    if (name.ends_with(".png") && !name.starts_with('.')) {
      std::string kind;
      for (const char c : name) {
        if (c < '0' || c > '9') {
          kind += c;
        }
      }
      auto& kept = last[kind];
      // Longer numbers are later ones.
      if (std::pair(name.size(), name) > std::pair(kept.size(), kept)) {
        kept = name;
      }
    }
  }
  if (last.empty()) {
    return text;
  }
  add(text,
      "## Samples\n\nThe last of each kind; all are in "
      "[samples](samples).\n\n");
  for (const auto& [kind, name] : last) {
    add(text, "{}\n\n![{}](<samples/{}>)\n\n", cell(name), cell(name), name);
  }
  return text;
}

std::string files_section(const RunDirectory& run, const std::string& outputs) {
  std::string text;
  add(text, "## Files\n\n| file | content |\n|---|---|\n");
  const auto one = [&](const os::Path& path, std::string_view content) {
    std::error_code error;
    if (os::real_files().exists(path) &&
        !std::filesystem::is_empty(path, error)) {
      const std::string name = path.lexically_relative(run.path()).string();
      add(text, "| [{}]({}) | {} |\n", name, name, content);
    }
  };
  one(run.job(), "the resolved job");
  one(run.events(), "all events, one JSON object a line");
  one(run.metrics(), "metrics by step");
  one(run.timing(), "time of each iteration and rank");
  one(run.rank_log(0).parent_path(), "output of each rank");
  one(run.checkpoints(), "checkpoints");
  one(run.samples(), "sample pictures");
  one(run.tensorboard(),
      fmt::format(
          "TensorBoard's files: `tensorboard --logdir {}`",
          run.tensorboard().string()));
  add(text, "\n");
  if (!outputs.empty()) {
    add(text,
        "Stored besides: [{0}](<{0}>), with [checkpoints](<{0}/checkpoints/>) "
        "and [TensorBoard's files](<{0}/tensorboard/>).\n\n",
        cell(outputs));
  }
  return text;
}

}  // namespace lockstep::record
