#include "lockstep/launch/companion.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <mutex>
#include <thread>

#include "lockstep/base/log.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/process.h"
#include "lockstep/os/unfinished.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kGlance = milliseconds(100);
constexpr Duration kFirstPause = milliseconds(200);
constexpr Duration kLongestPause = seconds(5);
// One that lived so long is started again at once.
constexpr Duration kGoodLife = seconds(10);

}  // namespace

struct Companion::State {
  std::string verb;
  std::vector<std::string> argv;
  os::Path directory;
  os::Path log;
  std::string text;  // what it reads first

  std::mutex mutex;
  std::unique_ptr<os::Process> process;
  os::Descriptor words;  // its standard input; closed: it may finish
  bool closing = false;
  std::jthread keeper;

  void start();
  void keep(const std::stop_token& stopped);
};

// With the mutex held.
void Companion::State::start() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return;
  }
  const os::Descriptor reads(ends[0]);
  words = os::Descriptor(ends[1]);
  os::SpawnOptions options;
  options.argv = argv;
  options.environment = os::environment();
  options.output = log;
  options.standard[0] = reads.get();
  auto spawned = os::real_processes().spawn(options);
  if (!spawned) {
    log_warning(verb + ": " + spawned.error().to_string());
    words.reset();
    return;
  }
  process = std::move(*spawned);
  // It reads them before all else: they never block us. SIGPIPE is ignored.
  if (::write(words.get(), text.data(), text.size()) < 0) {
    log_warning(verb + ": it took no orders");
  }
}

void Companion::State::keep(const std::stop_token& stopped) {
  Duration pause = kFirstPause;
  os::Instant born = os::real_clock().now();
  while (!stopped.stop_requested()) {
    os::real_clock().sleep_for(kGlance);
    std::unique_lock lock(mutex);
    if (closing) {
      return;
    }
    const auto ended = process == nullptr
                           ? Result<std::optional<os::ExitStatus>>(
                                 std::optional(os::ExitStatus{}))
                           : process->poll();
    if (!ended || !*ended) {
      continue;
    }
    if (process != nullptr) {
      os::remove_unfinished(directory, process->pid());
    }
    pause = os::real_clock().now() - born > kGoodLife ? kFirstPause : pause;
    lock.unlock();
    const os::Instant until = os::real_clock().now() + pause;
    while (!stopped.stop_requested() && os::real_clock().now() < until) {
      os::real_clock().sleep_for(kGlance);
    }
    pause = std::min(kLongestPause, pause * 2);
    lock.lock();
    if (closing || stopped.stop_requested()) {
      return;
    }
    born = os::real_clock().now();
    start();
  }
}

Companion::Companion(
    const os::Path& own_program,
    const std::string& verb,
    const os::Path& directory,
    const std::string& orders) {
  if (orders.empty()) {
    return;
  }
  state_ = std::make_unique<State>();
  state_->verb = verb;
  state_->argv = {own_program.string(), verb};
  state_->directory = directory;
  state_->log = directory / (verb + ".log");
  state_->text = fmt::format("{}\n{}\n", directory.string(), orders);
  const std::lock_guard lock(state_->mutex);
  state_->start();
  state_->keeper =
      std::jthread([state = state_.get()](const std::stop_token& stopped) {
        state->keep(stopped);
      });
}

Companion::~Companion() {
  if (!state_) {
    return;
  }
  state_->keeper.request_stop();
  state_->keeper.join();
  if (state_->process != nullptr) {
    (void)state_->process->signal(SIGKILL).has_value();
    if (state_->process->wait(os::Deadline::after(seconds(5)))) {
      os::remove_unfinished(state_->directory, state_->process->pid());
    }
  }
}

bool Companion::finish(os::Deadline deadline) {
  if (!state_) {
    return true;
  }
  {
    const std::lock_guard lock(state_->mutex);
    state_->closing = true;
    const auto ended = state_->process == nullptr
                           ? Result<std::optional<os::ExitStatus>>(
                                 std::optional(os::ExitStatus{}))
                           : state_->process->poll();
    if (ended && *ended) {
      state_->start();  // it had died: one more, for its end
    }
    state_->words.reset();
  }
  if (state_->process == nullptr) {
    return false;
  }
  const auto status = state_->process->wait(deadline);
  return status && status->ok();
}

}  // namespace lockstep::launch
