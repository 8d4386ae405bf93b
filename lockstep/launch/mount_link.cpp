#include "lockstep/launch/mount_link.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

bool leads_into(const os::Path& link, const os::Path& folder) {
  std::error_code error;
  const os::Path target = fs::read_symlink(link, error).lexically_normal();
  const auto [end, rest] =
      std::mismatch(folder.begin(), folder.end(), target.begin(), target.end());
  return !error && end == folder.end();
}

}  // namespace

Result<os::Path> link_mount(
    const os::Path& target,
    const os::Path& workdir,
    const std::string& name,
    const os::Path& ours) {
  os::Path place = (workdir / name).lexically_normal();
  if (!place.has_filename()) {
    place = place.parent_path();
  }
  std::error_code error;
  const auto there = fs::symlink_status(place, error);
  if (fs::exists(there)) {
    if (fs::equivalent(place, target, error)) {
      return place;
    }
    if (!fs::is_symlink(there) || (!ours.empty() && !leads_into(place, ours))) {
      return Error(
                 ErrorCode::kExists,
                 fmt::format(
                     "file_mounts: {} is there already", place.string()))
          .with_fix("choose another name, or leave it out of workdir");
    }
  }
  LOCKSTEP_TRY(os::real_files().make_directories(place.parent_path()));
  const os::Path temporary =
      fmt::format("{}.tmp-{}", place.string(), ::getpid());
  fs::remove(temporary, error);  // of a process that was killed
  fs::create_symlink(target, temporary, error);
  if (!error) {
    fs::rename(temporary, place, error);
  }
  if (error) {
    return Error(
        ErrorCode::kIo,
        fmt::format(
            "file_mounts: cannot make {}: {}",
            place.string(),
            error.message()));
  }
  return place;
}

}  // namespace lockstep::launch
