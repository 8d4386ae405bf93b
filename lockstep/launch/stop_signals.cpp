#include "lockstep/launch/stop_signals.h"

#include <sys/signalfd.h>

#include <csignal>

namespace lockstep::launch {

StopSignals::StopSignals() {
  sigset_t handled;
  sigemptyset(&handled);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action{};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) {
      sigaddset(&handled, number);
    }
  }
  ::pthread_sigmask(SIG_BLOCK, &handled, nullptr);
  descriptor_ =
      os::Descriptor(::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK));
}

int StopSignals::take() {
  int last = 0;
  signalfd_siginfo info{};
  if (::read(descriptor_.get(), &info, sizeof info) == sizeof info) {
    last = static_cast<int>(info.ssi_signo);
  }
  return last;
}

}  // namespace lockstep::launch
