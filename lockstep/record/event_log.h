#pragma once

// Events on disk. The writer never blocks training: write() puts the event in
// a bounded queue and a thread appends it; when the disk stalls, iteration and
// resource events are dropped and counted, other kinds wait in memory. The
// reader follows a growing file and skips what it cannot read, counting it.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

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
  // Until what was written before is on disk (synced), or the disk refused it:
  // then it stays in memory and is tried again.
  virtual void flush() = 0;
  virtual int64_t dropped() const = 0;
};

// Tails one file: each poll reads only what is new. Keeps a half-written last
// line for the next poll; starts again when the file was cut or replaced.
class EventReader {
 public:
  explicit EventReader(os::Path path) : path_(std::move(path)) {}
  using Use = std::function<void(const wire::Event&, const std::string& line)>;
  // Calls `use` for each new whole event. An absent file is no event.
  Result<void> poll(const Use& use);
  int64_t skipped() const { return skipped_; }

 private:
  Result<bool> replaced(int descriptor) const;
  void take_lines(std::string_view text, const Use& use);
  os::Path path_;
  uint64_t offset_ = 0;
  std::string head_;  // the first bytes, by which a replaced file is known
  std::string partial_;
  bool too_long_ = false;  // inside a line that is passed over
  int64_t skipped_ = 0;
};

}  // namespace lockstep::record
