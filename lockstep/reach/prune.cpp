#include "lockstep/reach/prune.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <ctime>

namespace lockstep::reach {

void mark_used(const os::Path& path) {
  ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
}

void prune(const os::Path& folder, Duration age) {
  const auto names = os::real_files().list(folder);
  if (!names) {
    return;
  }
  const time_t oldest =
      ::time(nullptr) -
      std::chrono::duration_cast<std::chrono::seconds>(age).count();
  for (const std::string& name : *names) {
    struct stat facts{};
    if (::lstat((folder / name).c_str(), &facts) == 0 &&
        facts.st_mtim.tv_sec < oldest) {
      std::error_code ignored;
      std::filesystem::remove_all(folder / name, ignored);
    }
  }
}

}  // namespace lockstep::reach
