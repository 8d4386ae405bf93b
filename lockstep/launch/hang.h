#pragma once

// The verdict on a hang. Pace says that ranks take too long; then the nodes are
// asked where those ranks sit, and the one that the others wait for is named:
// the rank that is behind in steps, else the one that is stopped or sleeps
// while the others wait in a collective. A rank that computes or writes is
// given more time. A stall is told once, and so is its end. Pure; one thread.

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/launch/agent.h"
#include "lockstep/launch/pace.h"

namespace lockstep::launch {

struct Hang {
  int rank = 0;
  std::string host;
  int pid = 0;
  int64_t step = 0;   // its last one
  int64_t ahead = 0;  // the highest of all ranks
  Duration silent{};
  Duration usual{};     // of a step; 0: not known
  std::string phase;    // that it is in, when not training
  RankPlace place;      // empty when the node did not answer
  bool likely = false;  // all stopped at the same step: our best guess
  int others = 0;       // ranks beside it

  // "rank 1 hangs on node2 (pid 42): no step for 31 s (usually 0.2 s), ...".
  std::string to_string() const;
  // The stack and what would tell more, for below it.
  std::vector<std::string> details() const;
};

// What a look at the run asks the supervisor to do.
struct HangNews {
  std::vector<int> inspect;  // ranks whose place is wanted
  std::optional<Hang> hang;
  std::string resumed;  // a line: the stall that was told is over
};

class HangWatch {
 public:
  explicit HangWatch(std::optional<Duration> after = {}) : pace_(after) {}

  void begin();  // a new generation
  void take(const Report& report, const std::string& host, os::Instant now);
  // Some times a second, after the reports were taken.
  HangNews look(os::Instant now);

 private:
  struct Rank {
    std::string host;
    int pid = 0;
  };
  enum class State { kWatching, kAsking, kTold };
  // About the ranks of the stall that were not asked about yet.
  void ask(const Stall& stall, HangNews& news);
  // None while the ranks have an excuse.
  std::optional<Hang> judge(const Stall& stall) const;

  Pace pace_;
  State state_ = State::kWatching;
  std::map<int, Rank> ranks_;  // that run
  std::map<int, RankPlace> places_;
  std::set<int> asked_;    // in this stall
  std::set<int> waiting_;  // of them, for an answer
  os::Instant give_up_;    // on answers
  std::optional<os::Instant> excused_until_;
  std::optional<os::Instant> last_look_;
  std::optional<Hang> told_;
};

// How much a place speaks for its rank being the cause and not one that waits
// for it: 0 (waits in a collective) to 100 (stopped).
int suspicion(const RankPlace& place);

}  // namespace lockstep::launch
