// The control program: parse, dispatch, exit code.

#include <csignal>

#include "lockstep/commands/command.h"
#include "lockstep/os/standard_streams.h"

int main(int argc, char** argv) {
  lockstep::os::hold_standard_streams();
  // A runner that ignores it would have the kernel reap our children unseen.
  std::signal(SIGCHLD, SIG_DFL);
  return lockstep::commands::run_command_line(argc, argv);
}
