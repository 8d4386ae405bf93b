#pragma once

// SIGINT, SIGTERM and SIGHUP as a descriptor. Make it before any thread: it
// blocks them for the process. One that is ignored (nohup) stays so.

#include "lockstep/os/descriptor.h"

namespace lockstep::launch {

class StopSignals {
 public:
  StopSignals();
  int descriptor() const { return descriptor_.get(); }
  // The last signal that came since the last call; 0: none.
  int take();

 private:
  os::Descriptor descriptor_;
};

}  // namespace lockstep::launch
