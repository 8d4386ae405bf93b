#pragma once

// A companion beside a run: `lockstep VERB` as a child of whoever supervises,
// a process of its own whose death is nobody's: a thread here starts it again.
// `uploader` stores the run directory while ranks write it, `renter` rents
// machines while the user's machine is away. What it must know, keys among it,
// goes to its standard input and nowhere else. Owned by one thread; after
// signals were blocked (stop_signals.h), before forks that matter.

#include <memory>
#include <string>

#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

class Companion {
 public:
  // `orders`: its own, one line; empty: nothing is started, and all calls do
  // nothing. It reads the directory and the orders, a line each. Its words go
  // to <directory>/<verb>.log.
  Companion(
      const os::Path& own_program,
      const std::string& verb,
      const os::Path& directory,
      const std::string& orders);
  // Kills it: what it was about stays as it was.
  ~Companion();

  // Its standard input ends: it brings its work to an end, and ends. False: not
  // by the deadline, or not everything.
  bool finish(os::Deadline deadline);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::launch
