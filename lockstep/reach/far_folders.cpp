// Synced folders at the far end: manifest and sync.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <map>

#include "lockstep/os/descriptor.h"
#include "lockstep/os/file.h"
#include "lockstep/reach/far_files.h"
#include "lockstep/reach/message.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

Result<os::Path> folder_of(const json& request, const os::Path& home) {
  LOCKSTEP_ASSIGN(const std::string id, text_field(request, "id"));
  if (id.find('/') != std::string::npos) {
    return Error(ErrorCode::kCorrupt, fmt::format("'{}' is no folder id", id));
  }
  return inside(home / "workdirs", id);
}

os::Path record_path(const os::Path& folder) {
  return folder.string() + ".record";
}

// Says whether a file is the one that was put there: programs may have
// written over it.
std::string stamp_of(const os::Path& path) {
  struct stat facts{};
  if (::lstat(path.c_str(), &facts) != 0) {
    return "";
  }
  return fmt::format(
      "{} {} {}.{:09} {:o}",
      facts.st_ino,
      facts.st_size,
      facts.st_mtim.tv_sec,
      facts.st_mtim.tv_nsec,
      facts.st_mode);
}

// Nothing on the way to `path` may be a link or a file.
Result<void> make_way(const os::Path& root, const os::Path& path) {
  os::Path so_far = root;
  std::error_code error;
  for (const os::Path& part : fs::relative(path, root).parent_path()) {
    so_far /= part;
    const auto kind = fs::symlink_status(so_far, error).type();
    if (kind != fs::file_type::directory && kind != fs::file_type::not_found) {
      fs::remove(so_far, error);
    }
  }
  return os::real_files().make_directories(path.parent_path());
}

Result<void> place_link(const std::string& target, const os::Path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (::symlink(target.c_str(), path.c_str()) != 0) {
    return os_error(fmt::format("cannot make {}", path.string()), errno);
  }
  return {};
}

Result<void> place_folder(const os::Path& path) {
  std::error_code error;
  if (fs::symlink_status(path, error).type() != fs::file_type::directory) {
    fs::remove(path, error);
  }
  return os::real_files().make_directories(path);
}

// `from` gets its mode and time before it gets its name.
Result<void>
place_file(const os::Path& from, const os::Path& path, const json& facts) {
  LOCKSTEP_ASSIGN(const uint64_t mode, number_field(facts, "mode"));
  const int64_t time = facts.value("time", int64_t{0});
  constexpr int64_t kSecond = 1'000'000'000;
  const timespec times[2] = {
      {.tv_sec = 0, .tv_nsec = UTIME_NOW},
      {.tv_sec = time / kSecond, .tv_nsec = time % kSecond}};
  std::error_code error;
  if (fs::symlink_status(path, error).type() == fs::file_type::directory) {
    fs::remove_all(path, error);
  }
  if (::chmod(from.c_str(), mode & 0777) != 0 ||
      ::utimensat(AT_FDCWD, from.c_str(), times, 0) != 0 ||
      ::rename(from.c_str(), path.c_str()) != 0) {
    return os_error(fmt::format("cannot write {}", path.string()), errno);
  }
  return {};
}

}  // namespace

json folder_record(const os::Path& folder) {
  const auto text = os::real_files().read(record_path(folder));
  json record = text ? parse_cbor(*text) : json();
  if (!record.is_object() || !record.contains("files") ||
      !record["files"].is_object()) {
    return {{"digest", ""}, {"files", json::object()}};
  }
  return record;
}

Result<json> FarFiles::manifest(const json& request) {
  LOCKSTEP_ASSIGN(const os::Path folder, folder_of(request, home_));
  const json record = folder_record(folder);
  json files = json::object();
  for (const auto& [name, facts] : record["files"].items()) {
    const auto path = inside(folder, name);
    std::error_code error;
    if (path && (facts.contains("folder")
                     ? fs::symlink_status(*path, error).type() ==
                           fs::file_type::directory
                     : facts.value("stamp", "") == stamp_of(*path))) {
      files[name] = facts;
      files[name].erase("stamp");
    } else {
      files[name] = json::object();  // sent once, no longer as it was
    }
  }
  const auto space = os::real_files().free_space(home_);
  return json{
      {"path", folder.string()},
      {"digest", record.value("digest", "")},
      {"files", files},
      {"free", space ? space->count : 0}};
}

Result<json> FarFiles::sync(const json& request) {
  LOCKSTEP_ASSIGN(const os::Path folder, folder_of(request, home_));
  LOCKSTEP_ASSIGN(const std::string digest, text_field(request, "digest"));
  LOCKSTEP_TRY(os::real_files().make_directories(folder));
  // Two syncs of one folder at once: one after the other.
  const os::Descriptor lock(
      ::open(
          (folder.string() + ".lock").c_str(),
          O_RDWR | O_CREAT | O_CLOEXEC,
          0600));
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0) {
    return os_error(fmt::format("cannot lock {}", folder.string()), errno);
  }
  json record = folder_record(folder);
  json& known = record["files"];
  for (const json& name : request.value("remove", json::array())) {
    LOCKSTEP_ASSIGN(
        const os::Path path, inside(folder, name.get<std::string>()));
    std::error_code error;
    fs::remove(path, error);  // a folder that is not empty stays
    known.erase(name.get<std::string>());
  }
  const json files = request.value("files", json::object());
  std::map<std::string, int> uses;
  for (const auto& [name, facts] : files.items()) {
    uses[facts.value("hash", "")] += 1;
  }
  for (const auto& [name, facts] : files.items()) {
    LOCKSTEP_ASSIGN(const os::Path path, inside(folder, name));
    LOCKSTEP_TRY(make_way(folder, path));
    if (facts.contains("link")) {
      LOCKSTEP_ASSIGN(const std::string target, text_field(facts, "link"));
      LOCKSTEP_TRY(place_link(target, path));
    } else if (facts.contains("folder")) {
      LOCKSTEP_TRY(place_folder(path));
    } else {
      LOCKSTEP_ASSIGN(const std::string hash, hash_field(facts, "hash"));
      os::Path from = incoming() / hash;
      if (--uses[hash] > 0) {
        const os::Path copy = from.string() + ".copy";
        std::error_code error;
        fs::copy_file(from, copy, fs::copy_options::overwrite_existing, error);
        if (error) {
          return os_error(
              fmt::format("cannot write {}", path.string()), error.value());
        }
        from = copy;
      }
      LOCKSTEP_TRY(place_file(from, path, facts));
    }
    known[name] = facts;
    known[name]["stamp"] = stamp_of(path);
  }
  record["digest"] = digest;
  std::string text;  // CBOR: names need not be UTF-8
  json::to_cbor(record, text);
  LOCKSTEP_TRY(os::real_files().write_atomic(record_path(folder), text));
  return json{{"path", folder.string()}};
}

}  // namespace lockstep::reach
