#pragma once

// A clock that is read in a few nanoseconds and is the same for all processes
// of a host: the processor's counter where it is steady, else the system's
// monotonic clock. Any thread.

#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace lockstep::collective {

namespace internal {
extern const bool kSteadyCounter;
}

inline uint64_t ticks() {
#if defined(__x86_64__)
  if (internal::kSteadyCounter) [[likely]] {
    return __rdtsc();
  }
#endif
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<uint64_t>(now.tv_nsec);
}

// Measured once, on the first call (2 ms).
double seconds_per_tick();

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#else
  asm volatile("yield" ::: "memory");
#endif
}

// Asks for the cache line to write to, and does not wait for it.
inline void fetch_for_writing(const void* line) {
#if defined(__x86_64__)
  asm volatile("prefetchw (%0)" ::"r"(line));
#else
  __builtin_prefetch(line, 1);
#endif
}

}  // namespace lockstep::collective
