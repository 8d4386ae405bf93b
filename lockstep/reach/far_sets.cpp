// Program sets at the far end: have and commit.

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <set>

#include "lockstep/os/file.h"
#include "lockstep/reach/far_files.h"
#include "lockstep/reach/message.h"
#include "lockstep/reach/prune.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct SetFile {
  std::string name;
  std::string hash;
  uint64_t size = 0;
  os::Path at;  // where it lies on the machine that sends
};

struct SetRequest {
  os::Path folder;
  std::string id;
  std::string program;  // "bin/lockstep-train"
  std::vector<SetFile> files;
  bool has_libraries = false;

  // A program with libraries is started by a script that names their folder.
  os::Path start() const {
    return has_libraries ? folder / os::Path(program).filename()
                         : folder / program;
  }
};

Result<SetRequest> parse(const json& request, const os::Path& home) {
  SetRequest set;
  LOCKSTEP_ASSIGN(set.id, hash_field(request, "set"));
  set.folder = home / "sets" / set.id;
  LOCKSTEP_ASSIGN(set.program, text_field(request, "program"));
  LOCKSTEP_TRY(inside(set.folder, set.program));
  for (const json& one : request.value("files", json::array())) {
    SetFile file;
    LOCKSTEP_ASSIGN(file.name, text_field(one, "name"));
    LOCKSTEP_TRY(inside(set.folder, file.name));
    LOCKSTEP_ASSIGN(file.hash, hash_field(one, "hash"));
    LOCKSTEP_ASSIGN(file.size, number_field(one, "size"));
    file.at = one.value("at", std::string());
    set.has_libraries = set.has_libraries || file.name.starts_with("lib/");
    set.files.push_back(std::move(file));
  }
  return set;
}

bool has_size(const os::Path& path, uint64_t size) {
  struct stat facts{};
  return ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) &&
         static_cast<uint64_t>(facts.st_size) == size;
}

// The same content lies here under the same path: a shared file system, or the
// same package.
bool lies_there(const SetFile& file, HashMemory& hashes) {
  if (!file.at.is_absolute() || !has_size(file.at, file.size)) {
    return false;
  }
  const auto hash = hashes.hash(file.at);
  return hash && *hash == file.hash;
}

// Blobs that no set holds any more.
void prune_blobs(const os::Path& folder) {
  const auto names = os::real_files().list(folder);
  for (const std::string& name : names.value_or(std::vector<std::string>())) {
    struct stat facts{};
    const time_t oldest =
        ::time(nullptr) -
        std::chrono::duration_cast<std::chrono::seconds>(kUnused).count();
    if (::stat((folder / name).c_str(), &facts) == 0 && facts.st_nlink == 1 &&
        facts.st_ctim.tv_sec < oldest) {
      ::unlink((folder / name).c_str());
    }
  }
}

bool is_whole(const SetRequest& set, HashMemory& hashes) {
  if (!os::real_files().exists(set.start())) {
    return false;
  }
  for (const SetFile& file : set.files) {
    const os::Path path = set.folder / file.name;
    std::error_code error;
    if (!has_size(path, file.size) ||
        (fs::is_symlink(path, error) && !lies_there(file, hashes))) {
      return false;
    }
  }
  return true;
}

Result<void> link_file(const os::Path& from, const os::Path& to, bool by_name) {
  LOCKSTEP_TRY(os::real_files().make_directories(to.parent_path()));
  const int failed = by_name ? ::symlink(from.c_str(), to.c_str())
                             : ::link(from.c_str(), to.c_str());
  if (failed == 0) {
    return {};
  }
  std::error_code error;
  if (!by_name) {  // a file system without hard links
    fs::copy_file(from, to, error);
  }
  if (by_name || error) {
    return os_error(fmt::format("cannot make {}", to.string()), errno);
  }
  return {};
}

Result<void> write_start(const SetRequest& set, const os::Path& folder) {
  const os::Path name = os::Path(set.program).filename();
  const os::Path path = folder / name;
  LOCKSTEP_TRY(
      os::real_files().write_atomic(
          path,
          fmt::format(
              "#!/bin/sh\n"
              "here=${{0%/*}}\n"
              "LD_LIBRARY_PATH=$here/"
              "lib${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}\n"
              "export LD_LIBRARY_PATH\n"
              "exec \"$here/{}\" \"$@\"\n",
              set.program)));
  if (::chmod(path.c_str(), 0755) != 0) {
    return os_error(fmt::format("cannot change {}", path.string()), errno);
  }
  return {};
}

}  // namespace

Result<json> FarFiles::have(const json& request) {
  LOCKSTEP_ASSIGN(const SetRequest set, parse(request, home_));
  if (is_whole(set, hashes_)) {
    mark_used(set.folder);
    return json{{"path", set.start().string()}};
  }
  prune_blobs(home_ / "blobs");
  std::set<std::string> missing;
  for (const SetFile& file : set.files) {
    if (!has_size(blob(file.hash), file.size) && !lies_there(file, hashes_)) {
      missing.insert(file.hash);
    }
  }
  const auto space = os::real_files().free_space(home_);
  return json{{"missing", missing}, {"free", space ? space->count : 0}};
}

Result<json> FarFiles::commit(const json& request) {
  LOCKSTEP_ASSIGN(const SetRequest set, parse(request, home_));
  const os::Path made = home_ / "sets" / fmt::format(".{}", session_);
  std::error_code error;
  fs::remove_all(made, error);
  for (const SetFile& file : set.files) {
    const bool is_blob = has_size(blob(file.hash), file.size);
    if (!is_blob && !lies_there(file, hashes_)) {
      return Error(
          ErrorCode::kNotFound,
          fmt::format("{} did not come whole", file.name));
    }
    LOCKSTEP_TRY(link_file(
        is_blob ? blob(file.hash) : file.at, made / file.name, !is_blob));
  }
  if (set.has_libraries) {
    LOCKSTEP_TRY(write_start(set, made));
  }
  // Another session may have made the same set meanwhile; a damaged one goes.
  if (!is_whole(set, hashes_)) {
    const os::Path old = home_ / "sets" / fmt::format(".{}.old", session_);
    fs::rename(set.folder, old, error);
    fs::remove_all(old, error);
    if (::rename(made.c_str(), set.folder.c_str()) != 0 &&
        !is_whole(set, hashes_)) {
      return os_error(
          fmt::format("cannot make {}", set.folder.string()), errno);
    }
  }
  fs::remove_all(made, error);
  return json{{"path", set.start().string()}};
}

}  // namespace lockstep::reach
