// The control program: parse, dispatch, exit code.

#include <csignal>

#include "lockstep/commands/command.h"

int main(int argc, char** argv) {
  // A runner that ignores it would have the kernel reap our children unseen.
  std::signal(SIGCHLD, SIG_DFL);
  return lockstep::commands::run_command_line(argc, argv);
}
