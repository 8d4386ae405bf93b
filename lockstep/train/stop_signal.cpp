#include "lockstep/train/stop_signal.h"

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>

namespace lockstep::train {
namespace {

volatile std::sig_atomic_t caught = 0;

void on_signal(int number) {
  if (caught != 0) {
    _exit(128 + number);
  }
  caught = number;
}

// The job's stop_signal: lockstep says "SIGUSR1"; by hand it may be "USR1" or
// "10". 0: none was told.
int told_signal() {
  const char* told = std::getenv("LOCKSTEP_STOP_SIGNAL");
  if (told == nullptr) {
    return 0;
  }
  const std::string text = told;
  const std::string name = text.starts_with("SIG") ? text.substr(3) : text;
  for (int number = 1; number < NSIG; ++number) {
    const char* abbreviation = ::sigabbrev_np(number);
    if (abbreviation != nullptr &&
        (name == abbreviation || text == std::to_string(number))) {
      return number;
    }
  }
  return 0;
}

}  // namespace

void install_stop_signals() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
  if (const int told = told_signal(); told != 0) {
    sigaction(told, &action, nullptr);
  }
}

bool stop_requested() {
  return caught != 0;
}

int stop_signal() {
  return caught;
}

}  // namespace lockstep::train
