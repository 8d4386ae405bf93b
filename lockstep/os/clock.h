#pragma once

// Time behind an interface, so that leases, deadlines and rates are tested
// without sleeping. Implementations are safe to call from any thread.

#include <atomic>
#include <chrono>

#include "lockstep/base/units.h"

namespace lockstep::os {

// A point on the monotonic clock; compared, never shown to a user.
using Instant = std::chrono::steady_clock::time_point;

class Clock {
 public:
  virtual ~Clock() = default;
  virtual double unix_seconds() const = 0;  // what events carry
  virtual Instant now() const = 0;
  virtual void sleep_for(Duration duration) = 0;
};

Clock& real_clock();

// Moves only when told; sleep_for moves it.
class FakeClock : public Clock {
 public:
  explicit FakeClock(double unix_seconds = 1.7e9);
  double unix_seconds() const override;
  Instant now() const override;
  void sleep_for(Duration duration) override { advance(duration); }
  void advance(Duration duration);

 private:
  double start_;
  std::atomic<int64_t> elapsed_{0};
};

// When a wait gives up. Copyable; every blocking call takes one.
class Deadline {
 public:
  static Deadline never() { return Deadline(Instant::max()); }
  static Deadline after(Duration duration, const Clock& clock = real_clock());
  bool passed(const Clock& clock = real_clock()) const;
  // At least 0, at most 1 hour: fits poll() and futex() timeouts.
  Duration left(const Clock& clock = real_clock()) const;

 private:
  explicit Deadline(Instant at) : at_(at) {}
  Instant at_;
};

}  // namespace lockstep::os
