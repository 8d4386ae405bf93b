#include "lockstep/commands/interruptible.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/base/to_stderr.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::commands {
namespace {

// Not what they started in turn: a shared connection of ssh may serve others.
void end_children() {
  std::error_code ignored;
  for (const auto& task :
       std::filesystem::directory_iterator("/proc/self/task", ignored)) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) {
      ::kill(child, SIGTERM);
    }
  }
}

}  // namespace

Result<void> interruptible(
    launch::StopSignals& signals,
    const std::function<Result<void>()>& action,
    const std::function<void()>& clean,
    const TimeLimit& limit) {
  Result<void> result;
  const os::Descriptor done(::eventfd(0, EFD_CLOEXEC));
  std::thread worker([&] {
    result = action();
    constexpr uint64_t kOne = 1;
    (void)!::write(done.get(), &kOne, sizeof kOne);
  });
  const auto give_up = [&](const std::string& why, int code) {
    if (clean) {
      clean();
    }
    to_stderr("lockstep: {} before {}\n", why, limit.before);
    end_children();
    std::_Exit(code);
  };
  while (true) {
    pollfd sources[] = {
        {signals.descriptor(), POLLIN, 0}, {done.get(), POLLIN, 0}};
    ::poll(
        sources,
        2,
        static_cast<int>(limit.deadline.left() / std::chrono::milliseconds(1)) +
            1);
    if ((sources[1].revents & POLLIN) != 0) {
      break;
    }
    if (signals.take() != 0) {
      give_up("interrupted", 130);
    }
    if (limit.deadline.passed()) {
      give_up(limit.reason + " is reached", limit.exit_code);
    }
  }
  worker.join();
  return result;
}

}  // namespace lockstep::commands
