#pragma once

// What `bench` may compare. A Candidates gives the list and says how a run is
// started on one of them; own hosts are one kind, rented machines another. One
// thread.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/commands/command.h"
#include "lockstep/launch/job.h"

namespace lockstep::commands {

struct Candidate {
  std::string name;  // as the user wrote it, without the price
  int nodes = 1;
  std::optional<Money> price;  // an hour and node
  std::string price_source;    // "command line", "user file", "job file"
  // What a probe sent and set up is there for the run as well: own hosts.
  bool keeps_setup = true;
  bool is_rented = false;  // and is given back when its probe ends
};

// "NAME" or "NAME=PRICE" as the user wrote it.
struct CandidateWord {
  std::string name;
  std::optional<Money> price;
};
Result<CandidateWord> parse_candidate_word(const std::string& word);
// An error when a name stands there twice.
Result<void> check_unique(const std::vector<Candidate>& candidates);

class Candidates {
 public:
  virtual ~Candidates() = default;
  virtual const std::vector<Candidate>& list() const = 0;
  // Makes the machines of a candidate ready for `lockstep run`; the options
  // that run a job there. May take minutes (a boot); called from any thread,
  // for one candidate by one thread.
  virtual Result<std::vector<std::string>> run_options(size_t index) = 0;
  // Gives them back; also after a failure. Never fails for own hosts.
  virtual Result<void> release(size_t index) = 0;
};

// Own hosts: "a", "a:4" (slots), "a+b" (both together), "local" (this machine),
// each maybe with "=PRICE" an hour and node. Without one: `prices` of the user
// file by name, `price` there for this machine, `resources.price` of the job.
// Errors name the word. Rented ones: rented_candidates.h.
Result<std::unique_ptr<Candidates>> host_candidates(
    const std::vector<std::string>& words,
    const launch::Job& job,
    const Settings& settings);

}  // namespace lockstep::commands
