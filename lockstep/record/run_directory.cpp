#include "lockstep/record/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "lockstep/base/id.h"
#include "lockstep/os/clock.h"

namespace lockstep::record {

namespace {

constexpr std::array kFolders =
    {"ranks", "tensorboard", "checkpoints", "samples", "plots"};

Error unusable(const os::Path& path, int error) {
  return os_error(
             fmt::format("cannot make the run directory {}", path.string()),
             error)
      .with_fix(
          "choose another place with --runs-dir DIR (lockstep) or out=DIR "
          "(lockstep-train)");
}

Result<void> add_folders(const os::Path& path) {
  for (const char* folder : kFolders) {
    std::error_code error;
    std::filesystem::create_directories(path / folder, error);
    if (error) {
      return unusable(path / folder, error.value());
    }
  }
  return {};
}

bool is_run(const os::Path& path) {
  std::error_code error;
  for (const char* mark : {"events.jsonl", "job.yaml", "ranks"}) {
    if (std::filesystem::exists(path / mark, error)) {
      return true;
    }
  }
  return false;
}

// "runs/x/" and "." have no last part; the id needs one.
os::Path plain(const os::Path& path) {
  std::error_code error;
  os::Path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (!whole.has_filename()) {
    whole = whole.parent_path();
  }
  return path.is_relative() && path.has_filename() && path != "." &&
                 path != ".."
             ? path
             : whole;
}

}  // namespace

Result<RunDirectory> RunDirectory::create(
    const os::Path& root,
    std::string_view name) {
  std::error_code error;
  std::filesystem::create_directories(root, error);
  if (error) {
    return unusable(root, error.value());
  }
  constexpr int kTries = 16;
  for (int i = 0; i < kTries; ++i) {
    const auto now = static_cast<int64_t>(os::real_clock().unix_seconds());
    os::Path path = root / make_run_id(name, now);
    if (std::filesystem::create_directory(path, error)) {
      if (auto added = add_folders(path); !added) {
        // Half of one would be listed as a run.
        std::filesystem::remove_all(path, error);
        return added.error();
      }
      return RunDirectory(plain(path));
    }
    if (error) {
      return unusable(path, error.value());
    }
  }
  return Error(
      ErrorCode::kInternal,
      fmt::format("no free run id under {}", root.string()));
}

Result<RunDirectory> RunDirectory::open(const os::Path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) {
    return unusable(path, error.value());
  }
  LOCKSTEP_TRY(add_folders(path));
  return RunDirectory(plain(path));
}

Result<RunDirectory> RunDirectory::existing(const os::Path& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error) || !is_run(path)) {
    return Error(
               ErrorCode::kNotFound,
               fmt::format("{} is not a run directory", path.string()))
        .with_fix("'lockstep ps' lists the runs");
  }
  return RunDirectory(plain(path));
}

std::vector<os::Path> RunDirectory::appended() const {
  auto& files = os::real_files();
  std::vector<os::Path> found;
  for (const auto& path : {events(), metrics(), timing()}) {
    if (files.exists(path)) {
      found.push_back(path);
    }
  }
  const auto add_from = [&](const os::Path& folder, const auto& ours) {
    for (const auto& name :
         files.list(folder).value_or(std::vector<std::string>())) {
      if (ours(name)) {
        found.push_back(folder / name);
      }
    }
  };
  add_from(path_ / "ranks", [](const std::string& name) {
    return name.ends_with(".jsonl");
  });
  add_from(tensorboard(), [](const std::string& name) {
    return name.starts_with("events.out.tfevents.");
  });
  return found;
}

bool RunDirectory::is_used() const {
  return !appended().empty();
}

Result<void> RunDirectory::start_anew() const {
  for (const auto& path : appended()) {
    LOCKSTEP_TRY(os::real_files().remove(path));
  }
  return {};
}

Result<void> set_checkpoints_aside(const os::Path& folder) {
  for (const std::string name : {"last.safetensors", "best.safetensors"}) {
    const os::Path from = folder / name;
    const os::Path to = folder / ("previous-" + name);
    std::error_code error;
    if (!std::filesystem::exists(from, error)) {
      continue;
    }
    // A folder of shards, or of a run without them: neither takes the other's
    // place by itself.
    std::filesystem::remove_all(to, error);
    if (!error) {
      std::filesystem::rename(from, to, error);
    }
    if (error) {
      return os_error(
          fmt::format("cannot move {} to {}", from.string(), to.string()),
          error.value());
    }
  }
  return {};
}

os::Path RunDirectory::rank_log(int rank) const {
  return path_ / "ranks" / fmt::format("{}.log", rank);
}

os::Path RunDirectory::rank_events(int rank) const {
  return path_ / "ranks" / fmt::format("{}.jsonl", rank);
}

namespace {

// When a run directory was made, in nanoseconds. Where the file system does not
// keep that: the last change of ranks/, which gains files at the start, and in
// a mirror also later.
int64_t made_at(const os::Path& path) {
  constexpr int64_t kSecond = 1'000'000'000;
  struct statx facts{};
  if (::statx(AT_FDCWD, path.c_str(), 0, STATX_BTIME, &facts) == 0 &&
      (facts.stx_mask & STATX_BTIME) != 0 && facts.stx_btime.tv_sec > 0) {
    return facts.stx_btime.tv_sec * kSecond + facts.stx_btime.tv_nsec;
  }
  if (::statx(AT_FDCWD, (path / "ranks").c_str(), 0, STATX_MTIME, &facts) !=
          0 &&
      ::statx(AT_FDCWD, path.c_str(), 0, STATX_MTIME, &facts) != 0) {
    return 0;
  }
  return facts.stx_mtime.tv_sec * kSecond + facts.stx_mtime.tv_nsec;
}

}  // namespace

Result<std::vector<RunDirectory>> list_runs(const os::Path& root) {
  std::vector<std::pair<int64_t, os::Path>> found;
  std::error_code error;
  auto entry = std::filesystem::directory_iterator(root, error);
  if (error == std::errc::no_such_file_or_directory) {
    return std::vector<RunDirectory>();
  }
  for (; !error && entry != std::filesystem::directory_iterator();
       entry.increment(error)) {
    std::error_code gone;
    if (entry->is_directory(gone) && is_run(entry->path())) {
      found.emplace_back(made_at(entry->path()), entry->path());
    }
  }
  if (error) {
    return os_error(
        fmt::format("cannot list {}", root.string()), error.value());
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<RunDirectory> runs;
  runs.reserve(found.size());
  for (const auto& [time, path] : found) {
    // One may have been removed meanwhile.
    if (auto run = RunDirectory::existing(path)) {
      runs.push_back(std::move(*run));
    }
  }
  return runs;
}

}  // namespace lockstep::record
