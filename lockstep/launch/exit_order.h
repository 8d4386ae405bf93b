#pragma once

// In which order children ended. waitpid tells who ended, in the order in which
// they were started; who was first is known only to the kernel, which puts
// process descriptors into an epoll's list as they become ready.

#include <map>
#include <vector>

#include "lockstep/os/descriptor.h"

namespace lockstep::launch {

class ExitOrder {
 public:
  ExitOrder();
  // A child that nobody has waited for. Where the kernel has no descriptors of
  // processes it is not seen.
  void watch(int pid);
  // Those that ended since the last call and are not waited for, the first
  // first.
  std::vector<int> take();

 private:
  os::Descriptor epoll_;
  std::map<int, os::Descriptor> processes_;  // by pid
};

}  // namespace lockstep::launch
