#include "lockstep/recipes/prediction_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <utility>

#include "lockstep/base/text.h"

namespace lockstep::recipes {
namespace {

namespace fs = std::filesystem;

Error refused(const os::Path& target, const std::string& why) {
  return Error(
             ErrorCode::kInvalidInput,
             fmt::format("predictions={}: {}", target.string(), why))
      .with_fix("predictions=FILE names the file to write, .csv");
}

bool same(const os::Path& one, const os::Path& other) {
  std::error_code absent;
  return fs::equivalent(one, other, absent);
}

fs::path folder_of(const os::Path& file) {
  return file.has_parent_path() ? file.parent_path() : fs::path(".");
}

// A name that says something else than text would be read as such next time.
Result<void> check_ending(const os::Path& target) {
  constexpr std::array<std::string_view, 3> kOthers = {".npy", ".h5", ".hdf5"};
  const auto ending = lower(target.extension().string());
  if (std::ranges::find(kOthers, ending) != kOthers.end()) {
    return refused(
        target,
        "a table as text is written; accepted: a name that ends in .csv");
  }
  return {};
}

// A new file there would be a part of the table next time.
Result<void> check_folder(
    const os::Path& target,
    const std::vector<os::Path>& inputs) {
  std::error_code absent;
  const auto folder = folder_of(target);
  if (!fs::is_directory(folder, absent)) {
    return refused(
        target, fmt::format("there is no folder {}", folder.string()));
  }
  for (const auto& input : inputs) {
    if (fs::is_directory(input, absent) && same(folder, input)) {
      return refused(
          target,
          fmt::format("lies in {}, whose files are the table", input.string()));
    }
  }
  return {};
}

Result<void> check_target(
    const os::Path& target,
    const std::vector<os::Path>& inputs) {
  std::error_code absent;
  if (target.filename().empty()) {
    return refused(target, "not the name of a file");
  }
  if (fs::exists(target, absent) && !fs::is_regular_file(target, absent)) {
    return refused(target, "is there and not a regular file");
  }
  for (const auto& input : inputs) {
    if (same(target, input)) {
      return refused(target, "is read by this very command");
    }
  }
  LOCKSTEP_TRY(check_ending(target));
  return check_folder(target, inputs);
}

}  // namespace

Result<PredictionFile> PredictionFile::open(
    const os::Path& target,
    const std::vector<os::Path>& inputs) {
  std::error_code absent;
  const auto followed = fs::canonical(target, absent);
  const os::Path real = absent ? target : followed;
  LOCKSTEP_TRY(check_target(real, inputs));
  // A link is a file of the folder that it lies in, wherever it leads.
  LOCKSTEP_TRY(check_ending(target));
  LOCKSTEP_TRY(check_folder(target, inputs));
  const os::Path part =
      folder_of(real) /
      fmt::format(".{}.tmp-{}", real.filename().string(), ::getpid());
  auto& files = os::real_files();
  LOCKSTEP_TRY(files.remove(part));
  LOCKSTEP_ASSIGN(auto file, record::PendingFile::open(files, part));
  return PredictionFile(real, std::move(file));
}

PredictionFile::PredictionFile(PredictionFile&& other) noexcept
    : target_(std::move(other.target_)),
      file_(std::move(other.file_)),
      open_(std::exchange(other.open_, false)) {}

PredictionFile::~PredictionFile() {
  if (open_) {
    std::error_code ignored;
    fs::remove(file_.path(), ignored);
  }
}

Result<void> PredictionFile::append(std::string_view text) {
  file_.add(text);
  return file_.drain();
}

Result<void> PredictionFile::finish() {
  LOCKSTEP_TRY(file_.sync());
  std::error_code error;
  fs::rename(file_.path(), target_, error);
  if (error) {
    return os_error(
        fmt::format("cannot write {}", target_.string()), error.value());
  }
  open_ = false;
  return {};
}

}  // namespace lockstep::recipes
