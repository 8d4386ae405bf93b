#include "lockstep/fetch/upload_journal.h"

#include <fcntl.h>
#include <sys/file.h>

#include <nlohmann/json.hpp>

#include "lockstep/fetch/sigv4.h"

namespace lockstep::fetch {

UploadJournal::UploadJournal(
    const os::Path& folder,
    const std::string& object) {
  if (folder.empty() ||
      !os::real_files().make_directories(folder / "uploads")) {
    return;
  }
  path_ = folder / "uploads" / sha256_hex(object).substr(0, 32);
  file_ =
      os::Descriptor(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (file_ && ::flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
    file_.reset();
  }
}

std::optional<UploadJournal::Entry> UploadJournal::read() const {
  if (!file_) {
    return std::nullopt;
  }
  std::string text(4096, '\0');
  const ssize_t count = ::pread(file_.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  const auto found = nlohmann::json::parse(text, nullptr, false);
  if (!found.is_object() || found.value("version", 0) != 1) {
    return std::nullopt;
  }
  return Entry{
      found.value("upload", ""),
      found.value("size", uint64_t{0}),
      found.value("part_size", uint64_t{0}),
      found.value("crc32c", ""),
      found.value("begun", int64_t{0})};
}

void UploadJournal::write(const Entry& entry) {
  const std::string text = nlohmann::json{
      {"version", 1},
      {"upload", entry.upload_id},
      {"size", entry.size},
      {"part_size", entry.part_size},
      {"crc32c", entry.crc},
      {"begun", entry.begun}}.dump();
  if (file_ && (::ftruncate(file_.get(), 0) != 0 ||
                ::pwrite(file_.get(), text.data(), text.size(), 0) < 0)) {
    forget();
  }
}

void UploadJournal::forget() {
  if (file_) {
    ::unlink(path_.c_str());
    file_.reset();
  }
}

}  // namespace lockstep::fetch
