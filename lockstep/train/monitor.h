#pragma once

// Samples this process's memory, CPU and GPU use on a thread of its own and
// writes `resource` events until destroyed.

#include <condition_variable>
#include <mutex>
#include <thread>

#include "lockstep/base/units.h"

namespace lockstep::record {
class EventWriter;
}

namespace lockstep::train {

class Monitor {
 public:
  // `gpu`: the device this rank computes on, or -1.
  Monitor(record::EventWriter& events, Duration period, int gpu);
  ~Monitor();  // writes one last sample

 private:
  void run(Duration period, int gpu);
  record::EventWriter& events_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace lockstep::train
