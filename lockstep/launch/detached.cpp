#include "lockstep/launch/detached.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>

#include "lockstep/os/descriptor.h"

namespace lockstep::launch {
namespace {

struct Pipe {
  os::Descriptor read, write;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return os_error("cannot make a pipe", errno);
  }
  return Pipe{os::Descriptor(ends[0]), os::Descriptor(ends[1])};
}

// Between fork and exec only calls that are safe there.
[[noreturn]] void
become(char* const* argv, int input, int output, int complaints) {
  ::setsid();
  const pid_t again = ::fork();
  if (again != 0) {
    ::_exit(again < 0 ? 1 : 0);
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE, SIGCHLD}) {
    ::signal(number, SIG_DFL);
  }
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(complaints, STDERR_FILENO);
  ::syscall(SYS_close_range, 3, ~0U, 0);
  ::execvp(argv[0], argv);
  constexpr std::string_view kText = "cannot be executed\n";
  (void)!::write(STDERR_FILENO, kText.data(), kText.size());
  ::_exit(127);
}

int wait_time(const os::Deadline& deadline) {
  return static_cast<int>(
      std::chrono::ceil<std::chrono::milliseconds>(deadline.left()).count());
}

// Writes all of `input`, unless the reader goes first: what it said tells why.
Result<void>
feed(os::Descriptor writer, const std::string& input, os::Deadline deadline) {
  ::fcntl(writer.get(), F_SETFL, O_NONBLOCK);
  size_t at = 0;
  while (at < input.size()) {
    const ssize_t size =
        ::write(writer.get(), input.data() + at, input.size() - at);
    if (size > 0) {
      at += static_cast<size_t>(size);
      continue;
    }
    if (errno == EPIPE) {
      return {};
    }
    if (errno != EAGAIN && errno != EINTR) {
      return os_error("cannot write to a program", errno);
    }
    if (deadline.passed()) {
      return Error(ErrorCode::kTimeout, "a program does not read its orders");
    }
    pollfd ready{writer.get(), POLLOUT, 0};
    ::poll(&ready, 1, wait_time(deadline));
  }
  return {};
}

// True when a whole line came, false at the end of the stream.
Result<bool> read_line(
    int descriptor,
    std::string& line,
    os::Deadline deadline,
    int caller) {
  while (true) {
    pollfd ready[] = {{descriptor, POLLIN, 0}, {caller, POLLRDHUP, 0}};
    const int count = ::poll(ready, 2, wait_time(deadline));
    if (count == 0 && deadline.passed()) {
      return Error(ErrorCode::kTimeout, "it said nothing in time");
    }
    if (count <= 0) {
      continue;
    }
    if ((ready[1].revents & POLLNVAL) != 0) {
      caller = -1;
    } else if (ready[0].revents == 0) {
      return Error(ErrorCode::kInterrupted, "nobody waits for its word");
    }
    char block[4096];
    const ssize_t size = ::read(descriptor, block, sizeof block);
    if (size <= 0) {
      return false;
    }
    line.append(block, static_cast<size_t>(size));
    if (const size_t end = line.find('\n'); end != std::string::npos) {
      line.resize(end);
      return true;
    }
  }
}

std::string content(int file) {
  constexpr size_t kMost = 4096;
  std::string text(kMost, '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  return text;
}

}  // namespace

Result<std::string> start_detached(
    const std::vector<std::string>& argv,
    const std::string& input,
    os::Deadline deadline,
    int caller) {
  std::vector<char*> words;
  for (const std::string& word : argv) {
    words.push_back(const_cast<char*>(word.c_str()));
  }
  words.push_back(nullptr);
  LOCKSTEP_ASSIGN(Pipe orders, make_pipe());
  LOCKSTEP_ASSIGN(Pipe answer, make_pipe());
  // A file and not a pipe: nobody reads it once the line has come.
  const os::Descriptor complaints(::memfd_create("complaints", MFD_CLOEXEC));
  const pid_t child = ::fork();
  if (child < 0) {
    return os_error("cannot start a process", errno);
  }
  if (child == 0) {
    become(
        words.data(), orders.read.get(), answer.write.get(), complaints.get());
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  orders.read.reset();
  answer.write.reset();
  struct sigaction before{};
  struct sigaction ignore{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  const Result<void> fed = feed(std::move(orders.write), input, deadline);
  ::sigaction(SIGPIPE, &before, nullptr);
  LOCKSTEP_TRY(fed);
  std::string line;
  LOCKSTEP_ASSIGN(
      const bool whole, read_line(answer.read.get(), line, deadline, caller));
  if (!whole) {
    const std::string said = content(complaints.get());
    return Error(
        ErrorCode::kUnavailable,
        fmt::format(
            "{} ended at once{}",
            argv.size() > 1 ? "lockstep " + argv[1] : argv[0],
            said.empty() ? "" : ": " + said));
  }
  return line;
}

}  // namespace lockstep::launch
