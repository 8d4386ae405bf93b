#pragma once

// What an earlier call brought into a folder, so that the next one moves what
// changed: "ETAG SIZE CHANGED NAME" a line, the last one of a name counts.
// Internal to fetch.

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/result.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

// Whether a file is still the one that was written.
struct Stamp {
  uint64_t size = 0;
  int64_t changed = 0;  // nanoseconds
  bool operator==(const Stamp&) const = default;
};
std::optional<Stamp> stamp_of(const os::Path& path);  // of a plain file

class Fetched {
 public:
  struct Entry {
    std::string etag;
    Stamp stamp;
  };

  explicit Fetched(os::Path path) : path_(std::move(path)) {}

  // Lines that cannot be read are passed over, and so is an absent file.
  void read();
  // Writes it anew, then add() may be called, from any thread.
  Result<void> open();
  Result<void> add(const std::string& name, Entry entry);
  Result<void> rewrite();

  std::map<std::string, Entry> entries;  // by name below the folder

 private:
  void read_line(std::string_view text);

  os::Path path_;
  os::Descriptor file_;
  std::mutex mutex_;
};

}  // namespace lockstep::fetch
