#pragma once

// The uploader beside a run: `lockstep uploader` as a child of whoever
// supervises, which stores the run directory while ranks write it. It is a
// process of its own with the lowest priority, so ranks never wait for it, and
// its death is nobody's: a thread here starts it again. What it must know, keys
// among it, goes to its standard input and nowhere else. Owned by one thread;
// after signals were blocked (stop_signals.h), before forks that matter.

#include <memory>
#include <string>

#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

class Uploading {
 public:
  // `orders`: of the uploader, one line; empty: nothing is started, and all
  // calls do nothing. Its words go to <directory>/uploader.log.
  Uploading(
      const os::Path& own_program,
      const os::Path& directory,
      const std::string& orders);
  // Kills it: an object that was on its way stays the old one.
  ~Uploading();

  // All that is there now is stored, then it ends; false: not by the deadline.
  bool finish(os::Deadline deadline);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace lockstep::launch
