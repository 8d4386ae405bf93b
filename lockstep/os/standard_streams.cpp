#include "lockstep/os/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace lockstep::os {

void hold_standard_streams() {
  constexpr int kModes[] = {O_RDONLY, O_RDONLY, O_WRONLY};
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    if (::fcntl(number, F_GETFD) < 0) {
      // The lowest number that is free, and those below are taken.
      ::open("/dev/null", kModes[number]);
    }
  }
}

}  // namespace lockstep::os
