#include "lockstep/launch/traffic.h"

#include <filesystem>

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

Bytes folder_bytes(const fs::path& folder) {
  Bytes sum{};
  std::error_code stop;
  for (fs::recursive_directory_iterator entry(folder, stop), end;
       !stop && entry != end;
       entry.increment(stop)) {
    std::error_code gone;
    if (entry->is_regular_file(gone) && !entry->is_symlink(gone)) {
      const uintmax_t size = entry->file_size(gone);
      sum.count += gone ? 0 : size;
    }
  }
  return sum;
}

}  // namespace

Bytes run_bytes(const record::RunDirectory& run) {
  return folder_bytes(run.path());
}

Bytes checkpoint_bytes(const record::RunDirectory& run) {
  return folder_bytes(run.checkpoints());
}

}  // namespace lockstep::launch
