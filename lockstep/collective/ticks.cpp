#include "lockstep/collective/ticks.h"

#include <cstring>
#include <fstream>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace lockstep::collective {
namespace {

// The kernel trusts the counter only when it agrees on all processors; so do
// we, and only then are arrival times of two ranks comparable.
bool find_steady_counter() {
#if defined(__x86_64__)
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (!__get_cpuid(0x80000007, &a, &b, &c, &d) || (d & 0x100) == 0) {
    return false;
  }
  std::ifstream file(
      "/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return file >> name && name == "tsc";
#else
  return false;
#endif
}

uint64_t monotonic_nanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<uint64_t>(now.tv_nsec);
}

double calibrate() {
  if (!internal::kSteadyCounter) {
    return 1e-9;
  }
  const uint64_t start_nanos = monotonic_nanos();
  const uint64_t start_ticks = ticks();
  uint64_t nanos = start_nanos;
  while (nanos - start_nanos < 2'000'000) {
    nanos = monotonic_nanos();
  }
  return static_cast<double>(nanos - start_nanos) * 1e-9 /
         static_cast<double>(ticks() - start_ticks);
}

}  // namespace

namespace internal {
const bool kSteadyCounter = find_steady_counter();
}

double seconds_per_tick() {
  static const double value = calibrate();
  return value;
}

}  // namespace lockstep::collective
