#include "lockstep/train/stop_signal.h"

#include <unistd.h>

#include <csignal>

namespace lockstep::train {
namespace {

volatile std::sig_atomic_t caught = 0;

void on_signal(int number) {
  if (caught != 0) {
    _exit(128 + number);
  }
  caught = number;
}

}  // namespace

void install_stop_signals() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGINT, &action, nullptr);
}

bool stop_requested() {
  return caught != 0;
}

int stop_signal() {
  return caught;
}

}  // namespace lockstep::train
