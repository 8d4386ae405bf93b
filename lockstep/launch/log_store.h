#pragma once

// The logs of ranks that run elsewhere, as they arrive: bytes with offsets go
// to ranks/R.log here, none twice and none left out, and wanted ones come out
// again as lines. A new generation goes on where the last one's bytes end.
// Memory does not grow with the output. One thread.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/agent_protocol.h"
#include "lockstep/launch/tail.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

class LogStore {
 public:
  explicit LogStore(const record::RunDirectory& run) : run_(run) {}

  // A rank begins on a node.
  void begin(size_t node, int generation, const RankCommand& command);
  // kCorrupt for bytes that do not join those that came. What belongs to
  // another node or generation is left out.
  Result<void> take(size_t node, const LogBytes& bytes);
  void take(size_t node, const LogRest& rest);
  // Nothing more comes from there.
  void close(size_t node);
  // Bytes that came of this generation, by rank.
  std::map<int, uint64_t> came(size_t node) const;
  // Lines of wanted ranks, at most `room` bytes.
  void read(size_t& room, std::vector<RankOutput>& lines);
  // Where a rank runs now.
  size_t node_of(int rank) const { return logs_.at(rank).node; }
  // Announced and not here yet, or here and not read.
  size_t left();

 private:
  struct Log {
    size_t node = 0;
    int generation = 0;
    uint64_t base = 0;  // where this generation begins in our file
    uint64_t came = 0;
    std::optional<uint64_t> size;
    bool closed = false;
    std::optional<Tail> shown;
  };
  os::Path path(int rank) const;
  void write(int rank, uint64_t offset, std::string_view data);
  record::RunDirectory run_;
  std::map<int, Log> logs_;  // by rank
  bool warned_ = false;
};

}  // namespace lockstep::launch
