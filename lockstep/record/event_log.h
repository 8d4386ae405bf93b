#pragma once

// Events on disk. The writer never blocks training: write() puts the event in
// a bounded queue and a thread appends it; when the disk stalls, iteration and
// resource events are dropped and counted, other kinds wait in memory. The
// reader follows a growing file and skips what it cannot read, counting it.

#include <functional>
#include <memory>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"
#include "lockstep/wire/event.h"

namespace lockstep::record {

class EventWriter {
 public:
  // Stamps rank, node (hostname) and time itself. `path` empty: discards.
  static Result<std::unique_ptr<EventWriter>>
  open(os::FileSystem& files, const os::Path& path, int rank, std::string node);
  virtual ~EventWriter() = default;              // drains, at most 5 s
  virtual void write(wire::EventBody body) = 0;  // any thread
  virtual void flush() = 0;                      // until all is on disk
  virtual int64_t dropped() const = 0;
};

// Tails one file. Keeps a half-written last line for the next poll.
class EventReader {
 public:
  explicit EventReader(os::Path path) : path_(std::move(path)) {}
  // Calls `use` for each new whole event. An absent file is no event.
  Result<void> poll(
      const std::function<void(const wire::Event&, const std::string& line)>&
          use);
  int64_t skipped() const { return skipped_; }

 private:
  os::Path path_;
  uint64_t offset_ = 0;
  std::string partial_;
  int64_t skipped_ = 0;
};

}  // namespace lockstep::record
