#include "lockstep/fetch/fetched_note.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <vector>

#include "lockstep/fetch/s3_xml.h"
#include "lockstep/fetch/sigv4.h"

namespace lockstep::fetch {
namespace {

std::string line_of(const std::string& name, const Fetched::Entry& entry) {
  return fmt::format(
      "{} {} {} {}\n",
      uri_encode(entry.etag),
      entry.stamp.size,
      entry.stamp.changed,
      uri_encode(name, true));
}

}  // namespace

std::optional<Stamp> stamp_of(const os::Path& path) {
  struct stat facts{};
  if (::lstat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return std::nullopt;
  }
  return Stamp{
      static_cast<uint64_t>(facts.st_size),
      facts.st_mtim.tv_sec * int64_t{1000000000} + facts.st_mtim.tv_nsec};
}

void Fetched::read() {
  const auto text = os::real_files().read(path_);
  std::string_view rest = text ? std::string_view(*text) : "";
  for (size_t end = rest.find('\n'); end != std::string_view::npos;
       end = rest.find('\n')) {
    read_line(rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
}

Result<void> Fetched::open() {
  LOCKSTEP_TRY(rewrite());
  file_ =
      os::Descriptor(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (!file_) {
    return os_error(fmt::format("cannot write {}", path_.string()), errno);
  }
  return {};
}

Result<void> Fetched::add(const std::string& name, Entry entry) {
  const std::string text = line_of(name, entry);
  const std::lock_guard lock(mutex_);
  entries[name] = std::move(entry);
  if (::write(file_.get(), text.data(), text.size()) < 0) {
    return os_error(fmt::format("cannot write {}", path_.string()), errno);
  }
  return {};
}

Result<void> Fetched::rewrite() {
  std::string text;
  for (const auto& [name, entry] : entries) {
    text += line_of(name, entry);
  }
  return os::real_files().write_atomic(path_, text);
}

void Fetched::read_line(std::string_view text) {
  std::vector<std::string_view> words;
  for (size_t at = 0; at <= text.size() && words.size() < 5;) {
    const size_t end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  if (words.size() != 4) {
    return;
  }
  Entry entry;
  entry.etag = url_decode(words[0]);
  std::from_chars(
      words[1].data(), words[1].data() + words[1].size(), entry.stamp.size);
  std::from_chars(
      words[2].data(), words[2].data() + words[2].size(), entry.stamp.changed);
  entries[url_decode(words[3])] = std::move(entry);
}

}  // namespace lockstep::fetch
