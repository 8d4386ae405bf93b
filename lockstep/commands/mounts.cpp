#include "lockstep/commands/mounts.h"

#include <fmt/format.h>

#include "lockstep/base/log.h"
#include "lockstep/fetch/mount.h"
#include "lockstep/launch/mount_link.h"
#include "lockstep/reach/content.h"
#include "lockstep/reach/prune.h"

namespace lockstep::commands {
namespace {

os::Path copies_folder() {
  return reach::lockstep_home() / "mounts";
}

// Copies that nobody mounted for a long time go, with the versions in them.
void keep_used(const os::Path& path) {
  const os::Path relative = path.lexically_relative(copies_folder());
  if (relative.empty() || *relative.begin() == "..") {
    return;  // the user's own
  }
  const os::Path source = copies_folder() / *relative.begin();
  reach::mark_used(source / *std::next(relative.begin()));
  reach::mark_used(source);
  reach::prune(source);
  reach::prune(copies_folder());
}

}  // namespace

Result<std::vector<Mount>> resolve_mounts(const launch::Job& job) {
  std::vector<Mount> mounts;
  for (const auto& [name, source] : job.file_mounts) {
    const std::string key = "file_mounts." + name;
    fetch::MountOptions options;
    options.source = source;
    options.cache = copies_folder();
    options.say = [&key](const std::string& line) {
      log_info(fmt::format("{}: {}", key, line));
    };
    auto path = fetch::resolve_mount(options).with_context(key);
    if (!path && path.error().code() == ErrorCode::kTimeout) {
      // A server's time, not the run's.
      return Error(ErrorCode::kUnavailable, path.error().to_string());
    }
    LOCKSTEP_TRY(path);
    keep_used(*path);
    mounts.push_back({name, *path});
  }
  return mounts;
}

Result<void> mount_here(const launch::Job& job) {
  LOCKSTEP_ASSIGN(const std::vector<Mount> mounts, resolve_mounts(job));
  for (const Mount& mount : mounts) {
    LOCKSTEP_TRY(
        launch::link_mount(
            mount.path, job.workdir, mount.name, copies_folder()));
  }
  return {};
}

}  // namespace lockstep::commands
