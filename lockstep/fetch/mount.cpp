#include "lockstep/fetch/mount.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>

#include "lockstep/base/text.h"
#include "lockstep/fetch/archive.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/fetch/http.h"
#include "lockstep/fetch/s3.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/process.h"

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

std::string last_part(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name.empty() || name[0] == '.' ? "file" : name;
}

// Of an address, without its query.
std::string name_in(const std::string& url) {
  return last_part(url.substr(0, url.find_first_of("?#")));
}

// The copies of one source. Holds its lock.
class Copies {
 public:
  static Result<Copies> open(const MountOptions& options) {
    Copies copies;
    copies.source_ = options.source;
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
  // A folder that is fetched again and again; what is in it moves once.
  os::Path tree_path() const { return folder_ / ".tree"; }

  // Makes what the tree holds now a version, by links to its files: a fetch
  // replaces files and never writes into them.
  Result<os::Path> add_tree(const std::string& content) {
    const std::string version = short_hash(content);
    const os::Path place = folder_ / version;
    std::error_code error;
    if (!fs::exists(place, error)) {
      const os::Path made = folder_ / ("." + version);
      fs::remove_all(made, error);
      fs::copy(
          tree_path(),
          made,
          fs::copy_options::recursive | fs::copy_options::create_hard_links,
          error);
      if (!error) {
        fs::rename(made, place, error);
      }
      if (error) {
        return os_error(
            fmt::format("cannot make {}", place.string()), error.value());
      }
    }
    return keep(place, "");
  }

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
        if (const auto unpacked = unpack_tar(file, made); !unpacked) {
          return no_archive(unpacked.error(), name);
        }
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
    if (file == download_path()) {
      fs::remove(file, error);
    }
    return keep(is_archive(name) ? place : place / name, validator);
  }

 private:
  // Our copy says nothing to anybody; the source does.
  Error no_archive(const Error& error, const std::string& name) const {
    if (error.code() != ErrorCode::kCorrupt) {
      return error;
    }
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "{} cannot be unpacked: {}",
                   without_password(source_),
                   error.message()))
        .with_fix(
            fmt::format(
                "{} is no whole archive (a page of the server, or a download "
                "that was cut?): look what it holds, or name it otherwise",
                name));
  }

  Result<os::Path> keep(const os::Path& place, const std::string& validator) {
    newest_ = place;
    LOCKSTEP_TRY(
        os::real_files().write_atomic(
            note(),
            fmt::format(
                "{}\n{}\n",
                fs::path(newest_).lexically_relative(folder_).string(),
                validator)));
    return newest_;
  }

  os::Path note() const { return folder_ / ".newest"; }

  void read_note() {
    const auto text = os::real_files().read(note());
    const auto lines = text ? lines_of(*text) : std::vector<std::string>();
    if (lines.size() == 2 && os::real_files().exists(folder_ / lines[0])) {
      newest_ = folder_ / lines[0];
      validator_ = lines[1];
    }
  }

  std::string source_;
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
    text = os::home_folder() + text.substr(1);
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
    options.say(fmt::format("fetching {}", without_password(options.source)));
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

// A name of all that was fetched into a folder: from its list, the times of
// change left out.
Result<std::string> content_of(const os::Path& tree) {
  LOCKSTEP_ASSIGN(
      const std::string text,
      os::real_files().read(tree.string() + ".fetched"));
  std::string content;
  for (const std::string& line : lines_of(text)) {
    const size_t etag = line.find(' ');
    const size_t name = line.rfind(' ');
    if (etag != std::string::npos) {
      content += line.substr(0, etag) + line.substr(name) + "\n";
    }
  }
  return content;
}

Result<os::Path> from_store(const MountOptions& options) {
  LOCKSTEP_ASSIGN(const S3Address address, parse_s3_address(options.source));
  // '?' and '#' are letters of a key like any other.
  const std::string name = last_part(address.key);
  LOCKSTEP_TRY(check_kind(name));
  S3Options store;
  LOCKSTEP_ASSIGN(store.client.settings, load_settings());
  store.client.say = options.say;
  S3 s3(std::move(store));
  LOCKSTEP_ASSIGN(Copies copies, Copies::open(options));
  const auto fetch_it = [&]() -> Result<os::Path> {
    if (!address.key.empty() && !address.key.ends_with('/')) {
      const auto object = s3.head(address);
      if (object && !object->etag.empty() &&
          object->etag == copies.validator()) {
        return copies.newest();
      }
      if (object) {
        LOCKSTEP_TRY(s3.download(address, copies.download_path()));
        return copies.add(copies.download_path(), name, object->etag);
      }
      // No object of that name: it may be a folder of them.
      if (object.error().code() != ErrorCode::kNotFound) {
        return object.error();
      }
    }
    LOCKSTEP_TRY(s3.download_folder(address, copies.tree_path()));
    LOCKSTEP_ASSIGN(const std::string content, content_of(copies.tree_path()));
    return copies.add_tree(content);
  };
  if (copies.newest().empty() && options.say) {
    options.say(fmt::format("fetching {}", without_password(options.source)));
  }
  auto place = fetch_it();
  if (!place && place.error().retry() && !copies.newest().empty()) {
    if (options.say) {
      options.say(
          fmt::format(
              "{}; the copy that was fetched before is used",
              place.error().to_string()));
    }
    return copies.newest();
  }
  return place;
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
  if (scheme == "s3") {
    return from_store(options);
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "{}: '{}://' is not known; accepted: a path, https://, http://, "
          "s3://",
          without_password(options.source),
          scheme));
}

}  // namespace lockstep::fetch
