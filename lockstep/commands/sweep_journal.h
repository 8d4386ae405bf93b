#pragma once

// What a sweep has done so far: one record a repeat that ended, well or not,
// in repeats.jsonl of the sweep's folder. The journal is the truth; the CSV
// files are made from it. It is replaced whole, so a repeat counts once its
// record is there and a killed sweep leaves none in halves; lines that cannot
// be read are passed over and counted. One thread, one process (a lock file).

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/file.h"

namespace lockstep::commands {

struct Repeat {
  std::string stem;  // of the configuration
  int number = 0;    // from 0, by configuration
  bool done = false;
  std::string run;            // id; empty: none was made
  double total = 0;           // seconds, as the launcher measured them
  std::vector<double> ranks;  // seconds of epoch 0, by rank
  // What each of `ranks` is: "epoch" (its epoch event), "iterations" (the sum
  // of those of epoch 0) or "life" (of a rank that tells neither).
  std::vector<std::string> sources;
  double samples = 0;  // of all ranks; 0: not told
  double samples_per_second = 0;
  double dollars = 0;
  int exit_code = 0;
  std::string reason;  // of a failure
  double time = 0;     // Unix seconds, at its end

  // A user who ended the sweep is no failure; what it cost still counts.
  bool failed() const { return !done && exit_code != kInterruptedCode; }
  static constexpr int kInterruptedCode = 130;
};

std::string to_json(const Repeat& repeat);
// An error for a line that is no whole record; never throws.
Result<Repeat> parse_repeat(std::string_view line);

class SweepJournal {
 public:
  // Makes the folder, takes its lock and reads what is there. `identity` says
  // what a repeat means (job, scaling, hosts); a folder whose sweep means
  // something else is refused with the first difference. `read_only`: nothing
  // is made or locked.
  static Result<SweepJournal> open(
      const os::Path& folder,
      const std::map<std::string, std::string>& identity,
      bool read_only);

  const os::Path& folder() const { return folder_; }
  const std::vector<Repeat>& repeats() const { return repeats_; }
  // Of one configuration, those that went well, in order.
  std::vector<const Repeat*> done(const std::string& stem) const;
  size_t failures(const std::string& stem) const;
  bool knows(const std::string& run) const;
  double dollars() const;  // of all, failed ones too
  int skipped() const { return skipped_; }
  // On disk when it returns.
  Result<void> add(Repeat repeat);

 private:
  os::Path folder_;
  os::Descriptor lock_;
  std::vector<Repeat> repeats_;
  int skipped_ = 0;
};

}  // namespace lockstep::commands
