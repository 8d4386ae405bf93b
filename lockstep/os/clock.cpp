#include "lockstep/os/clock.h"

#include <algorithm>
#include <thread>

namespace lockstep::os {
namespace {

constexpr Duration kLongestWait = std::chrono::hours(1);

class RealClock : public Clock {
 public:
  double unix_seconds() const override {
    return std::chrono::duration<double>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  Instant now() const override { return std::chrono::steady_clock::now(); }
  void sleep_for(Duration duration) override {
    std::this_thread::sleep_for(duration);
  }
};

}  // namespace

Clock& real_clock() {
  static RealClock clock;
  return clock;
}

FakeClock::FakeClock(double unix_seconds) : start_(unix_seconds) {}

double FakeClock::unix_seconds() const {
  return start_ + static_cast<double>(elapsed_.load()) * 1e-9;
}

Instant FakeClock::now() const {
  return Instant(Duration(elapsed_.load()));
}

void FakeClock::advance(Duration duration) {
  elapsed_.fetch_add(std::max<int64_t>(duration.count(), 0));
}

Deadline Deadline::after(Duration duration, const Clock& clock) {
  Instant now = clock.now();
  if (duration >= Instant::max() - now) {
    return never();
  }
  return Deadline(now + std::max(duration, Duration::zero()));
}

bool Deadline::passed(const Clock& clock) const {
  return at_ != Instant::max() && clock.now() >= at_;
}

Duration Deadline::left(const Clock& clock) const {
  if (at_ == Instant::max()) {
    return kLongestWait;
  }
  return std::clamp<Duration>(
      at_ - clock.now(), Duration::zero(), kLongestWait);
}

}  // namespace lockstep::os
