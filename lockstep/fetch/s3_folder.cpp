#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/fetch/checksum.h"
#include "lockstep/fetch/fetched_note.h"
#include "lockstep/fetch/file_bytes.h"
#include "lockstep/fetch/s3_state.h"
#include "lockstep/fetch/workers.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::fetch {
namespace {

namespace fs = std::filesystem;

// Counts bytes of many files that move side by side.
class Meter {
 public:
  Meter(const TransferOptions& options, uint64_t total)
      : options_(options), total_(total) {}

  Result<void> add(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    now_ += bytes;
    if (options_.progress && !options_.progress(now_, total_)) {
      return Error(ErrorCode::kInterrupted, "stopped");
    }
    return {};
  }
  // For a transfer of one file among them.
  TransferOptions part() {
    TransferOptions out;
    out.progress = [this, before = std::make_shared<uint64_t>(0)](
                       uint64_t now, uint64_t) {
      const uint64_t more = now - *before;
      *before = now;
      return static_cast<bool>(add(more));
    };
    return out;
  }

 private:
  const TransferOptions& options_;
  uint64_t total_;
  std::mutex mutex_;
  uint64_t now_ = 0;
};

bool is_safe(const std::string& name) {
  if (name.empty() || name.front() == '/' ||
      name.find('\0') != std::string::npos) {
    return false;
  }
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('/', at), name.size());
    const std::string_view part = std::string_view(name).substr(at, end - at);
    const bool last = end == name.size();
    if (part == ".." || part == "." || (part.empty() && !last)) {
      return false;
    }
    at = end + 1;
  }
  return true;
}

struct Wanted {
  S3Object object;
  std::string name;  // below the folder
};

Result<std::vector<Wanted>> find_objects(
    S3::State& s3,
    const S3Address& prefix) {
  std::vector<Wanted> found;
  LOCKSTEP_TRY(s3.list(prefix, [&](S3Object object) -> Result<void> {
    std::string name =
        object.key.substr(std::min(prefix.key.size(), object.key.size()));
    if (name.empty()) {
      return {};  // the marker of the folder itself
    }
    if (!is_safe(name)) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "s3://{}/{} cannot be a file below a folder: its name holds "
              "'..', '.' or an empty part",
              prefix.bucket,
              object.key));
    }
    found.push_back({std::move(object), std::move(name)});
    return {};
  }));
  if (found.empty()) {
    return Error(
               ErrorCode::kNotFound,
               fmt::format("there is nothing below {}", prefix.to_string()))
        .with_fix("check the bucket and the path");
  }
  return found;
}

Result<void> fetch_one(
    S3::State& s3,
    const S3Address& address,
    const Wanted& wanted,
    const os::Path& folder,
    Fetched& fetched,
    Meter& meter) {
  const os::Path path = folder / wanted.name;
  if (wanted.name.ends_with('/')) {
    return os::real_files().make_directories(path);
  }
  std::string etag;
  if (wanted.object.size > s3.options.part_size) {
    LOCKSTEP_ASSIGN(const S3Object object, s3.head(address));
    LOCKSTEP_ASSIGN(
        const Transferred done,
        s3.download(object, address, path, meter.part()));
    etag = done.etag;
  } else {
    S3Object object;
    LOCKSTEP_ASSIGN(const std::string bytes, s3.get_checked(address, object));
    LOCKSTEP_TRY(place_file(path, bytes));
    etag = object.etag;
    LOCKSTEP_TRY(meter.add(wanted.object.size));
  }
  const auto stamp = stamp_of(path);
  return stamp ? fetched.add(wanted.name, {etag, *stamp}) : Result<void>{};
}

// The content of a small or large file against what the store says of it.
Result<bool> is_stored(
    S3::State& s3,
    const os::Path& path,
    uint64_t size,
    const S3Address& address,
    const S3Object& object) {
  if (object.size != size) {
    return false;
  }
  if (is_md5(object.etag)) {
    LOCKSTEP_ASSIGN(
        const auto checksum, file_checksum(path, ChecksumKind::kMd5));
    return checksum.hex == object.etag;
  }
  const auto there = s3.head(address);
  if (!there || !there->metadata.contains(kCrcName)) {
    return false;
  }
  const os::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    return os_error(fmt::format("cannot read {}", path.string()), errno);
  }
  constexpr uint64_t kPiece = uint64_t{1} << 20;
  const auto buffer = std::make_unique_for_overwrite<char[]>(kPiece);
  uint32_t crc = 0;
  for (uint64_t at = 0; at < size; at += kPiece) {
    const uint64_t count = std::min(kPiece, size - at);
    LOCKSTEP_TRY(read_at(file.get(), path, at, {buffer.get(), count}));
    crc = crc32c({buffer.get(), count}, crc);
  }
  return there->metadata.at(kCrcName) == crc_text(crc);
}

struct Local {
  os::Path path;
  std::string name;
  uint64_t size = 0;
};

Result<std::vector<Local>> find_files(const os::Path& folder) {
  std::vector<Local> found;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (const fs::recursive_directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;  // a file may end while we look
    if (entry->is_regular_file(gone)) {
      const uint64_t size = entry->file_size(gone);
      if (!gone) {
        found.push_back(
            {entry->path(),
             entry->path().lexically_relative(folder).generic_string(),
             size});
      }
    }
  }
  if (error) {
    return os_error(
        fmt::format("cannot read {}", folder.string()), error.value());
  }
  std::sort(found.begin(), found.end(), [](const Local& a, const Local& b) {
    return a.name < b.name;
  });
  return found;
}

// Small files side by side, then large ones one after the other, each in
// parts side by side.
template <class IsLarge, class Work>
Result<void>
small_then_large(size_t count, int workers, IsLarge is_large, Work work) {
  std::vector<size_t> large;
  std::vector<size_t> small;
  for (size_t i = 0; i < count; ++i) {
    (is_large(i) ? large : small).push_back(i);
  }
  LOCKSTEP_TRY(run_workers(
      small.size(), workers, [&](size_t i) { return work(small[i]); }));
  for (const size_t i : large) {
    LOCKSTEP_TRY(work(i));
  }
  return {};
}

}  // namespace

Result<Transferred> S3::download_folder(
    const S3Address& from,
    const os::Path& to,
    const TransferOptions& options) {
  State& s3 = *state_;
  const S3Address prefix = from.key.empty() ? from : from.below("");
  os::Path folder = to;
  while (folder.has_relative_path() && !folder.has_filename()) {
    folder = folder.parent_path();
  }
  LOCKSTEP_ASSIGN(const auto wanted, find_objects(s3, prefix));
  LOCKSTEP_TRY(os::real_files().make_directories(folder));
  Fetched fetched(folder.string() + ".fetched");
  fetched.read();
  Transferred out;
  std::set<std::string> names;
  std::set<std::string> folders;
  std::vector<size_t> missing;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const auto& [object, name] = wanted[i];
    names.insert(name);
    out.bytes += object.size;
    const auto old = fetched.entries.find(name);
    const auto stamp = stamp_of(folder / name);
    if (old != fetched.entries.end() && stamp == old->second.stamp &&
        old->second.etag == object.etag) {
      ++out.skipped;
      continue;
    }
    out.moved += object.size;
    missing.push_back(i);
    if (const size_t slash = name.rfind('/'); slash != std::string::npos) {
      folders.insert(name.substr(0, slash));
    }
  }
  out.files = wanted.size();
  for (auto old = fetched.entries.begin(); old != fetched.entries.end();) {
    if (names.contains(old->first)) {
      ++old;
      continue;
    }
    // Taken away only while it is still what we wrote.
    if (stamp_of(folder / old->first) == old->second.stamp) {
      LOCKSTEP_TRY(os::real_files().remove(folder / old->first));
    }
    old = fetched.entries.erase(old);
  }
  LOCKSTEP_TRY(fetched.open());
  for (const std::string& name : folders) {
    auto made = os::real_files().make_directories(folder / name);
    if (!made) {
      return std::move(made.error())
          .with_context(fmt::format("fetching {}", from.to_string()));
    }
  }
  Meter meter(options, out.bytes);
  LOCKSTEP_TRY(meter.add(out.bytes - out.moved));
  LOCKSTEP_TRY(
      small_then_large(
          missing.size(),
          s3.options.file_workers,
          [&](size_t i) {
            return wanted[missing[i]].object.size > s3.options.part_size;
          },
          [&](size_t i) {
            const Wanted& one = wanted[missing[i]];
            return fetch_one(
                s3,
                S3Address{from.bucket, one.object.key},
                one,
                folder,
                fetched,
                meter);
          })
          .with_context(
              fmt::format(
                  "fetching {} to {}", from.to_string(), folder.string())));
  LOCKSTEP_TRY(fetched.rewrite());
  return out;
}

Result<Transferred> S3::upload_folder(
    const os::Path& from,
    const S3Address& to,
    const TransferOptions& options) {
  State& s3 = *state_;
  LOCKSTEP_ASSIGN(auto files, find_files(from));
  if (options.leave_out) {
    std::erase_if(
        files, [&](const Local& file) { return options.leave_out(file.name); });
  }
  std::map<std::string, S3Object> stored;
  const S3Address prefix = to.key.empty() ? to : to.below("");
  auto listed = s3.list(prefix, [&](S3Object object) -> Result<void> {
    std::string key = object.key;
    stored.emplace(std::move(key), std::move(object));
    return {};
  });
  // Who may store but not list stores everything again.
  if (!listed && listed.error().code() != ErrorCode::kPermission) {
    return std::move(listed.error());
  }
  Transferred out;
  out.files = files.size();
  for (const Local& file : files) {
    out.bytes += file.size;
  }
  Meter meter(options, out.bytes);
  std::atomic<uint64_t> skipped{0};
  std::atomic<uint64_t> moved{0};
  const auto is_large = [&](size_t i) {
    return files[i].size > s3.options.part_size;
  };
  const auto store_one = [&](size_t i) -> Result<void> {
    const Local& file = files[i];
    const S3Address address = prefix.below(file.name);
    if (const auto old = stored.find(address.key); old != stored.end()) {
      LOCKSTEP_ASSIGN(
          const bool same,
          is_stored(s3, file.path, file.size, address, old->second));
      if (same) {
        ++skipped;
        return meter.add(file.size);
      }
    }
    LOCKSTEP_ASSIGN(
        const Transferred done, s3.upload(file.path, address, meter.part()));
    moved += done.moved;
    return {};
  };
  LOCKSTEP_TRY(small_then_large(
      files.size(), s3.options.file_workers, is_large, store_one));
  out.skipped = skipped;
  out.moved = moved;
  return out;
}

}  // namespace lockstep::fetch
