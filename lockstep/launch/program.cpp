#include "lockstep/launch/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

namespace lockstep::launch {

namespace fs = std::filesystem;

os::Path find_program(const std::string& name, const std::string& path) {
  const auto usable = [](const os::Path& file) {
    std::error_code ignored;
    return fs::is_regular_file(file, ignored) &&
           ::access(file.c_str(), X_OK) == 0;
  };
  if (name.find('/') != std::string::npos) {
    return usable(name) ? os::Path(name) : os::Path();
  }
  size_t start = 0;
  while (start <= path.size()) {
    const size_t end = std::min(path.find(':', start), path.size());
    const os::Path file =
        os::Path(end == start ? "." : path.substr(start, end - start)) / name;
    if (usable(file)) {
      return file;
    }
    start = end + 1;
  }
  return {};
}

Result<void> check_program(
    const std::string& program,
    const os::Path& workdir,
    const std::string& path) {
  os::Path file = program;
  if (program.find('/') != std::string::npos && file.is_relative()) {
    file = workdir / file;
  }
  if (!find_program(file.string(), path).empty()) {
    return {};
  }
  std::error_code ignored;
  if (program.find('/') != std::string::npos && fs::exists(file, ignored)) {
    return Error(
               ErrorCode::kPermission,
               fmt::format("cannot run '{}': not executable", program))
        .with_fix(fmt::format("chmod +x {}", program));
  }
  return Error(
             ErrorCode::kNotFound,
             fmt::format("cannot run '{}': no such program", program))
      .with_fix("check its name and PATH");
}

}  // namespace lockstep::launch
