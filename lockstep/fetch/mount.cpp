#include "lockstep/fetch/mount.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include "lockstep/base/text.h"
#include "lockstep/fetch/archive.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/fetch/http.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

namespace fs = std::filesystem;

constexpr size_t kShortHash = 16;  // digits that name a source or a version

std::string short_hash(const std::string& text) {
  Digest digest(ChecksumKind::kSha256);
  digest.update(text);
  return digest.finish().substr(0, kShortHash);
}

bool is_archive(const std::string& name) {
  return name.ends_with(".tar") || name.ends_with(".tar.gz") ||
         name.ends_with(".tgz");
}

// Brought as they are they would surprise: USE says archives are unpacked.
Result<void> check_kind(const std::string& name) {
  for (const char* ending :
       {".zip", ".tar.xz", ".tar.bz2", ".tar.zst", ".txz", ".tbz2", ".7z"}) {
    if (name.ends_with(ending)) {
      return Error(
                 ErrorCode::kInvalidInput,
                 fmt::format(
                     "{}: lockstep unpacks .tar, .tar.gz and .tgz, not {}",
                     name,
                     ending))
          .with_fix("pack it as .tar.gz, or unpack it and name the folder");
    }
  }
  return {};
}

// The last part of an address, without its query.
std::string name_in(const std::string& url) {
  const std::string path = url.substr(0, url.find_first_of("?#"));
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.empty() || name[0] == '.' ? "file" : name;
}

// The copies of one source. Holds its lock.
class Copies {
 public:
  static Result<Copies> open(const MountOptions& options) {
    Copies copies;
    copies.folder_ = options.cache / short_hash(options.source);
    LOCKSTEP_TRY(os::real_files().make_directories(copies.folder_));
    const os::Path lock = copies.folder_ / ".lock";
    copies.lock_ = os::Descriptor(
        ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    while (!copies.lock_ || ::flock(copies.lock_.get(), LOCK_EX) != 0) {
      if (!copies.lock_ || errno != EINTR) {
        return os_error(fmt::format("cannot lock {}", lock.string()), errno);
      }
    }
    copies.read_note();
    return copies;
  }

  // The newest copy, of which `validator` was true; empty: none.
  const os::Path& newest() const { return newest_; }
  const std::string& validator() const { return validator_; }
  os::Path download_path() const { return folder_ / ".download"; }

  // Makes the file a version: unpacked where it is an archive, else under
  // `name`. The file itself is moved when it is the download.
  Result<os::Path> add(
      const os::Path& file,
      const std::string& name,
      const std::string& validator) {
    LOCKSTEP_ASSIGN(
        const Checksum sum, file_checksum(file, ChecksumKind::kSha256));
    const std::string version = sum.hex.substr(0, kShortHash);
    const os::Path place = folder_ / version;
    std::error_code error;
    if (!fs::exists(place, error)) {
      const os::Path made = folder_ / ("." + version);
      fs::remove_all(made, error);
      LOCKSTEP_TRY(os::real_files().make_directories(made));
      if (is_archive(name)) {
        LOCKSTEP_TRY(unpack_tar(file, made));
      } else {
        fs::rename(file, made / name, error);
      }
      if (!error) {
        fs::rename(made, place, error);
      }
      if (error) {
        return os_error(
            fmt::format("cannot make {}", place.string()), error.value());
      }
    }
    newest_ = is_archive(name) ? place : place / name;
    if (file == download_path()) {
      fs::remove(file, error);
    }
    LOCKSTEP_TRY(
        os::real_files().write_atomic(
            note(),
            fmt::format(
                "{}\n{}\n",
                fs::path(newest_).lexically_relative(folder_).string(),
                validator)));
    return newest_;
  }

 private:
  os::Path note() const { return folder_ / ".newest"; }

  void read_note() {
    const auto text = os::real_files().read(note());
    const auto lines = text ? lines_of(*text) : std::vector<std::string>();
    if (lines.size() == 2 && os::real_files().exists(folder_ / lines[0])) {
      newest_ = folder_ / lines[0];
      validator_ = lines[1];
    }
  }

  os::Path folder_;
  os::Descriptor lock_;
  os::Path newest_;
  std::string validator_;
};

Result<os::Path> local_path(const MountOptions& options) {
  constexpr std::string_view kFile = "file://";
  std::string text = options.source.starts_with(kFile)
                         ? options.source.substr(kFile.size())
                         : options.source;
  if (text.starts_with("~/")) {
    const char* home = std::getenv("HOME");
    text = (home == nullptr ? "" : home) + text.substr(1);
  }
  os::Path path = fs::absolute(text).lexically_normal();
  if (!path.has_filename()) {
    path = path.parent_path();  // written with a slash at its end
  }
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0) {
    return os_error(fmt::format("cannot use {}", path.string()), errno);
  }
  if (S_ISDIR(facts.st_mode)) {
    return path;
  }
  const std::string name = path.filename().string();
  LOCKSTEP_TRY(check_kind(name));
  if (!is_archive(name)) {
    return path;
  }
  MountOptions whole = options;
  whole.source = path.string();
  LOCKSTEP_ASSIGN(Copies copies, Copies::open(whole));
  const std::string validator = fmt::format(
      "{} {}.{:09}",
      facts.st_size,
      facts.st_mtim.tv_sec,
      facts.st_mtim.tv_nsec);
  if (copies.validator() == validator) {
    return copies.newest();
  }
  return copies.add(path, name, validator);
}

Result<os::Path> downloaded(const MountOptions& options) {
  const std::string name = name_in(options.source);
  LOCKSTEP_TRY(check_kind(name));
  LOCKSTEP_ASSIGN(Copies copies, Copies::open(options));
  DownloadOptions wanted;
  wanted.url = options.source;
  wanted.to = copies.download_path();
  wanted.validator = copies.validator();
  wanted.say = options.say;
  if (copies.newest().empty() && options.say) {
    options.say(fmt::format("fetching {}", options.source));
  }
  const auto done = download(wanted);
  if (!done) {
    const ErrorCode code = done.error().code();
    if (!copies.newest().empty() &&
        (code == ErrorCode::kUnavailable || code == ErrorCode::kTimeout)) {
      if (options.say) {
        options.say(
            fmt::format(
                "{}; the copy that was fetched before is used",
                done.error().to_string()));
      }
      return copies.newest();
    }
    return Error(done.error());
  }
  if (done->unchanged) {
    return copies.newest();
  }
  return copies.add(copies.download_path(), name, done->validator);
}

}  // namespace

std::string scheme_of(const std::string& source) {
  const size_t end = source.find("://");
  if (end == std::string::npos || end == 0 ||
      !std::all_of(
          source.begin(),
          source.begin() + static_cast<ptrdiff_t>(end),
          [](unsigned char c) {
            return std::isalnum(c) != 0 || c == '+' || c == '-' || c == '.';
          })) {
    return "";
  }
  return source.substr(0, end);
}

Result<os::Path> resolve_mount(const MountOptions& options) {
  const std::string scheme = scheme_of(options.source);
  if (options.source.empty()) {
    return Error(ErrorCode::kInvalidInput, "it names no source");
  }
  if (scheme.empty() || scheme == "file") {
    return local_path(options);
  }
  if (scheme == "http" || scheme == "https") {
    return downloaded(options);
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "{}: '{}://' is not known; accepted: a path, https://, http://",
          options.source,
          scheme));
}

}  // namespace lockstep::fetch
