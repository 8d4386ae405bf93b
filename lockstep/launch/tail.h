#pragma once

// Follows a file that another process appends to. Reads never block and are
// bounded, so a file that grows faster than its reader costs time, not memory.
// One thread.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/os/descriptor.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

class Tail {
 public:
  // What ends a line: kReturns takes a bare CR too, as progress bars write.
  enum class Ends { kNewlines, kReturns };

  // Starts at `offset`; an absent file is an empty one.
  explicit Tail(os::Path path, uint64_t offset = 0, Ends ends = Ends::kNewlines)
      : path_(std::move(path)), offset_(offset), ends_(ends) {}

  // Whole lines (without their ends) of the next `room` bytes at most. A line
  // longer than 64 KiB comes in pieces, cut between words where it has any.
  std::vector<std::string> read(size_t room);
  // The last line, when it has no end.
  std::vector<std::string> rest();
  // Bytes of the file that were not read.
  uint64_t left();
  // Passes over all but the last `keep` bytes; how many were passed over.
  uint64_t skip(uint64_t keep);

 private:
  bool open();
  size_t end_of_line(std::string_view text) const;
  os::Path path_;
  os::Descriptor file_;
  uint64_t offset_;
  Ends ends_;
  bool returned_ = false;  // the last byte was a CR that ended a line
  std::string partial_;
};

// The last `count` lines of a file, from `offset` on; at most 16 KiB of it.
std::vector<std::string>
last_lines(const os::Path& path, size_t count, uint64_t offset = 0);

}  // namespace lockstep::launch
