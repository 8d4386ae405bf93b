#include "lockstep/launch/python_module.h"

namespace lockstep::launch {

void add_python_folder(const os::Path& folder, Environment& environment) {
  environment[kPythonFolder] = folder.string();
  std::string& path = environment["PYTHONPATH"];
  path += (path.empty() ? "" : ":") + folder.string();
}

Result<void> place_python_module(
    os::FileSystem& files,
    const os::Path& folder) {
  const os::Path file = folder / "lockstep.py";
  if (const auto there = files.read(file); there && *there == python_module()) {
    return {};
  }
  LOCKSTEP_TRY(files.make_directories(folder));
  LOCKSTEP_TRY(files.remove(file));
  // Not synced: it is on the way from command to ranks, and made anew for each
  // run.
  LOCKSTEP_ASSIGN(auto written, files.open_append(file));
  return written->append(python_module());
}

}  // namespace lockstep::launch
