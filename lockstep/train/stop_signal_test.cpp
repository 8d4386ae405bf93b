#include "lockstep/train/stop_signal.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace lockstep::train {
namespace {

// In a process of its own, since handlers and what they caught stay.
[[noreturn]] void catch_one(const char* told, int number) {
  ::setenv("LOCKSTEP_STOP_SIGNAL", told, 1);
  install_stop_signals();
  ::raise(number);
  std::_Exit(stop_requested() ? 128 + stop_signal() : 0);
}

TEST(StopSignal, TheJobsSignalAsksAsSigtermDoes) {
  for (const char* told : {"SIGUSR1", "USR1", "10"}) {
    EXPECT_EXIT(
        catch_one(told, SIGUSR1), testing::ExitedWithCode(128 + SIGUSR1), "")
        << told;
  }
  for (const char* told : {"SIGUSR1", "SIGNOPE", ""}) {
    EXPECT_EXIT(
        catch_one(told, SIGTERM), testing::ExitedWithCode(128 + SIGTERM), "")
        << told;
  }
}

}  // namespace
}  // namespace lockstep::train
