#pragma once

// Secrets in what ranks print. A rank writes its log itself, so a secret that
// it prints stands there; whoever shows a log masks it. Only the process that
// starts a run has the values: it leaves prints of them in the run directory
// (`.masks`, for the owner alone: how long each is, and a salted SHA-256), by
// which every later reader finds them without knowing them.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/job.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

class Masks {
 public:
  // Masks nothing.
  Masks() = default;
  static Masks of(const Job& job);
  // Those of a run; none, or what cannot be read, masks nothing.
  static Masks read(const record::RunDirectory& run);

  // Nothing is written for a job without secrets.
  Result<void> write(const record::RunDirectory& run) const;
  // `line` with every secret replaced by "***".
  std::string apply(std::string line) const;

 private:
  struct Print {
    size_t size = 0;
    uint32_t check = 0;  // few bits: tells where a SHA-256 is worth its time
    std::string hash;
  };
  uint64_t base() const;
  uint64_t rolled(std::string_view text) const;
  bool is(const Print& print, uint64_t rolled, std::string_view text) const;
  void hide(const Print& print, std::string& line) const;

  std::string salt_;
  std::vector<Print> prints_;  // the longest first
};

}  // namespace lockstep::launch
