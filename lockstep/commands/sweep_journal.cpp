#include "lockstep/commands/sweep_journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>

namespace lockstep::commands {
namespace {

using nlohmann::json;

constexpr const char* kJournal = "repeats.jsonl";
constexpr const char* kIdentity = "sweep.json";
constexpr int kVersion = 1;

std::string dumped(const json& value, int indent = -1) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

Result<os::Descriptor> take_lock(const os::Path& folder) {
  const os::Path file = folder / ".lock";
  os::Descriptor lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock) {
    return os_error(fmt::format("cannot open {}", file.string()), errno);
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return os_error(fmt::format("cannot lock {}", file.string()), errno);
    }
    return Error(
               ErrorCode::kExists,
               fmt::format("another sweep works in {}", folder.string()))
        .with_fix("wait for its end, or choose another folder with --out");
  }
  return lock;
}

// What makes the repeats of two sweeps comparable must be the same.
Result<void> check_identity(
    const os::Path& file,
    const std::map<std::string, std::string>& identity,
    bool read_only) {
  if (!os::real_files().exists(file)) {
    if (read_only) {
      return {};
    }
    return os::real_files().write_atomic(
        file, dumped(json{{"v", kVersion}, {"sweep", identity}}, 1) + "\n");
  }
  LOCKSTEP_ASSIGN(const std::string text, os::real_files().read(file));
  const json stored = json::parse(text, nullptr, false);
  if (!stored.is_object() || !stored.contains("sweep") ||
      !stored["sweep"].is_object()) {
    return Error(
               ErrorCode::kCorrupt,
               fmt::format("{} is not a sweep's", file.string()))
        .with_fix("choose another folder with --out");
  }
  for (const auto& [key, value] : identity) {
    const json& before = stored["sweep"].value(key, json(""));
    if (before != json(value)) {
      return Error(
                 ErrorCode::kExists,
                 fmt::format(
                     "{} holds a sweep with another '{}': it was {}, now it is "
                     "{}",
                     file.parent_path().string(),
                     key,
                     dumped(before),
                     dumped(json(value))))
          .with_fix("choose another folder with --out");
    }
  }
  return {};
}

}  // namespace

std::string to_json(const Repeat& repeat) {
  return dumped(
      {{"v", kVersion},
       {"configuration", repeat.stem},
       {"repeat", repeat.number},
       {"done", repeat.done},
       {"run", repeat.run},
       {"total", repeat.total},
       {"ranks", repeat.ranks},
       {"sources", repeat.sources},
       {"samples", repeat.samples},
       {"samples_per_second", repeat.samples_per_second},
       {"dollars", repeat.dollars},
       {"exit_code", repeat.exit_code},
       {"reason", repeat.reason},
       {"time", repeat.time}});
}

Result<Repeat> parse_repeat(std::string_view line) {
  const Error broken(ErrorCode::kCorrupt, "not the record of a repeat");
  const json value = json::parse(line, nullptr, false);
  if (!value.is_object()) {
    return broken;
  }
  Repeat repeat;
  try {
    if (value.at("v") != kVersion) {
      return broken;
    }
    value.at("configuration").get_to(repeat.stem);
    value.at("repeat").get_to(repeat.number);
    value.at("done").get_to(repeat.done);
    repeat.run = value.value("run", "");
    repeat.total = value.value("total", 0.0);
    repeat.ranks = value.value("ranks", std::vector<double>());
    repeat.sources = value.value("sources", std::vector<std::string>());
    repeat.samples = value.value("samples", 0.0);
    repeat.samples_per_second = value.value("samples_per_second", 0.0);
    repeat.dollars = value.value("dollars", 0.0);
    repeat.exit_code = value.value("exit_code", 0);
    repeat.reason = value.value("reason", "");
    repeat.time = value.value("time", 0.0);
  } catch (const json::exception&) {
    return broken;
  }
  if (repeat.done && (repeat.ranks.empty() || !(repeat.total > 0) ||
                      !std::isfinite(repeat.total))) {
    return broken;
  }
  return repeat;
}

Result<SweepJournal> SweepJournal::open(
    const os::Path& folder,
    const std::map<std::string, std::string>& identity,
    bool read_only) {
  SweepJournal journal;
  journal.folder_ = folder;
  if (!read_only) {
    LOCKSTEP_TRY(os::real_files().make_directories(folder));
    LOCKSTEP_ASSIGN(journal.lock_, take_lock(folder));
  }
  LOCKSTEP_TRY(check_identity(folder / kIdentity, identity, read_only));
  if (!os::real_files().exists(folder / kJournal)) {
    return journal;
  }
  LOCKSTEP_ASSIGN(std::string text, os::real_files().read(folder / kJournal));
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = text.find('\n', start);
    if (end == std::string::npos) {
      ++journal.skipped_;  // cut off: it never counts
      break;
    }
    auto repeat =
        parse_repeat(std::string_view(text).substr(start, end - start));
    if (repeat) {
      journal.repeats_.push_back(std::move(*repeat));
    } else if (end > start) {
      ++journal.skipped_;
    }
    start = end + 1;
  }
  return journal;
}

std::vector<const Repeat*> SweepJournal::done(const std::string& stem) const {
  std::vector<const Repeat*> found;
  for (const Repeat& repeat : repeats_) {
    if (repeat.done && repeat.stem == stem) {
      found.push_back(&repeat);
    }
  }
  return found;
}

size_t SweepJournal::failures(const std::string& stem) const {
  size_t count = 0;
  for (const Repeat& repeat : repeats_) {
    count += repeat.failed() && repeat.stem == stem ? 1 : 0;
  }
  return count;
}

bool SweepJournal::knows(const std::string& run) const {
  return std::ranges::any_of(
      repeats_, [&](const Repeat& one) { return one.run == run; });
}

double SweepJournal::dollars() const {
  double sum = 0;
  for (const Repeat& repeat : repeats_) {
    sum += repeat.dollars;
  }
  return sum;
}

Result<void> SweepJournal::add(Repeat repeat) {
  repeats_.push_back(std::move(repeat));
  std::string text;
  for (const Repeat& one : repeats_) {
    text += to_json(one) + "\n";
  }
  return os::real_files().write_atomic(folder_ / kJournal, text);
}

}  // namespace lockstep::commands
