#include "lockstep/launch/place.h"

#include <fmt/format.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "lockstep/base/text.h"

namespace lockstep::launch {
namespace {

const char* syscall_name(long number) {
  switch (number) {
    case SYS_futex:
      return "futex";
    case SYS_clock_nanosleep:
    case SYS_nanosleep:
      return "nanosleep";
    case SYS_ppoll:
    case SYS_pselect6:
#ifdef SYS_poll
    case SYS_poll:
    case SYS_select:
#endif
      return "poll";
    case SYS_epoll_pwait:
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
      return "epoll_wait";
    case SYS_read:
      return "read";
    case SYS_write:
      return "write";
    case SYS_recvfrom:
    case SYS_recvmsg:
      return "recv";
    case SYS_sendto:
    case SYS_sendmsg:
      return "send";
    case SYS_accept:
    case SYS_accept4:
      return "accept";
    case SYS_connect:
      return "connect";
    case SYS_wait4:
    case SYS_waitid:
      return "wait4";
    case SYS_rt_sigsuspend:
      return "sigsuspend";
    case SYS_fsync:
      return "fsync";
    case SYS_flock:
      return "flock";
    default:
      return nullptr;
  }
}

}  // namespace

std::string describe_state(
    const std::string& status,
    const std::string& wchan,
    const std::string& stack,
    const std::string& syscall) {
  const size_t at = status.find("State:");
  const size_t letter =
      at == std::string::npos ? at : status.find_first_not_of(" \t", at + 6);
  if (letter == std::string::npos) {
    return "gone";
  }
  std::string where(trim(wchan));
  if (where.empty() || where == "0") {
    // "[<0>] hrtimer_nanosleep+0x74/0xf0"
    const size_t start = stack.find("] ");
    where = start == std::string::npos
                ? ""
                : stack.substr(
                      start + 2, stack.find_first_of("+\n", start) - start - 2);
  }
  if (where.empty() && !syscall.empty() &&
      std::isdigit(static_cast<unsigned char>(syscall[0])) != 0) {
    const char* name = syscall_name(std::strtol(syscall.c_str(), nullptr, 10));
    where = name == nullptr
                ? "system call " + syscall.substr(0, syscall.find(' '))
                : name;
  }
  const std::string in = where.empty() ? "" : " in " + where;
  switch (status[letter]) {
    case 'R':
      return "running";
    case 'S':
      return "sleeping" + in;
    case 'D':
      return "waiting for a device" + in;
    case 'T':
      return "stopped (by SIGSTOP or a terminal)";
    case 't':
      return "traced by a debugger";
    case 'Z':
    case 'X':
      return "gone";
    default:
      return std::string(trim(
                 status.substr(letter, status.find('\n', letter) - letter))) +
             in;
  }
}

std::vector<std::string> gdb_frames(const std::string& output, size_t most) {
  std::vector<std::string> frames;
  for (const std::string& line : lines_of(output)) {
    // "#1  0x00007f in pysleep (timeout=...) at ./Modules/timemodule.c:2159"
    if (line.empty() || line[0] != '#' || frames.size() == most) {
      continue;
    }
    size_t start = line.find_first_not_of("#0123456789 ");
    if (const size_t in = line.find(" in ");
        line.find("0x") < in && in != std::string::npos) {
      start = in + 4;
    }
    if (start == std::string::npos) {
      continue;
    }
    std::string function = line.substr(start);
    std::string place;
    if (const size_t at = function.rfind(") at "); at != std::string::npos) {
      place = function.substr(at + 5);
    } else if (
        const size_t from = function.rfind(") from ");
        from != std::string::npos) {
      place = function.substr(from + 7);
    }
    if (const size_t arguments = function.find(" (");
        arguments != std::string::npos) {
      function.resize(arguments);
    }
    if (const size_t slash = place.rfind('/'); slash != std::string::npos) {
      place.erase(0, slash + 1);
    }
    frames.push_back(
        place.empty() ? function : fmt::format("{} ({})", function, place));
  }
  return frames;
}

std::vector<std::string> python_frames(const std::string& output, size_t most) {
  std::vector<std::string> frames;
  bool main_thread = false;
  for (const std::string& line : lines_of(output)) {
    if (line.starts_with("Thread ")) {
      main_thread =
          line.find("\"MainThread\"") != std::string::npos || frames.empty();
      if (line.find("\"MainThread\"") != std::string::npos) {
        frames.clear();
      }
    } else if (
        main_thread && line.starts_with("    ") && frames.size() < most) {
      frames.emplace_back(trim(line));
    }
  }
  return frames;
}

}  // namespace lockstep::launch
