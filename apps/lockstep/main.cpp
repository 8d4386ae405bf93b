// The control program: parse, dispatch, exit code.

#include <fcntl.h>
#include <unistd.h>

#include <csignal>

#include "lockstep/commands/command.h"

namespace {

// Closed, its number would be that of the next file that is opened, and what
// is told the user would go there.
void keep_stderr() {
  if (::fcntl(STDERR_FILENO, F_GETFD) >= 0) {
    return;
  }
  const int null = ::open("/dev/null", O_WRONLY);
  if (null >= 0 && null != STDERR_FILENO) {
    ::dup2(null, STDERR_FILENO);
    ::close(null);
  }
}

}  // namespace

int main(int argc, char** argv) {
  keep_stderr();
  // A runner that ignores it would have the kernel reap our children unseen.
  std::signal(SIGCHLD, SIG_DFL);
  return lockstep::commands::run_command_line(argc, argv);
}
