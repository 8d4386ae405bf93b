#pragma once

// Samples this process's memory, CPU and GPU use on a thread of its own and
// writes `resource` events until destroyed.

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/base/units.h"

namespace lockstep::record {
class EventWriter;
}

namespace lockstep::train {

class Monitor {
 public:
  // `gpu`: the address on the bus of the GPU this rank computes on; empty: it
  // is not known, so the machine's only GPU is meant; none: it computes on
  // none.
  Monitor(
      record::EventWriter& events,
      Duration period,
      const std::optional<std::string>& gpu);
  ~Monitor();  // writes one last sample

 private:
  void run(Duration period, int gpu);  // NVML's number, or -1
  record::EventWriter& events_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  std::thread thread_;
};

}  // namespace lockstep::train
