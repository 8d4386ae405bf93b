#include "lockstep/os/standard_streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

namespace lockstep::os {
namespace {

// In a child: the streams of the test itself stay.
template <class Body>
int child(Body body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::_exit(body());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(StandardStreams, NoFileTakesTheNumberOfAClosedOne) {
  EXPECT_EQ(
      child([] {
        ::close(STDIN_FILENO);
        ::close(STDOUT_FILENO);
        ::close(STDERR_FILENO);
        hold_standard_streams();
        char byte = 0;
        if (::read(STDIN_FILENO, &byte, 1) != 0) {
          return 1;
        }
        if (::write(STDOUT_FILENO, "x", 1) != -1 || errno != EBADF) {
          return 2;
        }
        if (::write(STDERR_FILENO, "x", 1) != 1) {
          return 3;
        }
        return ::open("/dev/null", O_RDONLY) > STDERR_FILENO ? 0 : 4;
      }),
      0);
}

TEST(StandardStreams, LeavesThoseThatAreOpen) {
  EXPECT_EQ(
      child([] {
        int ends[2];
        if (::pipe(ends) != 0 || ::dup2(ends[1], STDOUT_FILENO) < 0) {
          return 1;
        }
        ::close(STDERR_FILENO);
        hold_standard_streams();
        char byte = 0;
        return ::write(STDOUT_FILENO, "x", 1) == 1 &&
                       ::read(ends[0], &byte, 1) == 1 && byte == 'x'
                   ? 0
                   : 2;
      }),
      0);
}

}  // namespace
}  // namespace lockstep::os
