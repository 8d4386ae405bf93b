#include "lockstep/commands/renting_beat.h"

#include <time.h>

#include "lockstep/base/log.h"

namespace lockstep::commands {
namespace {

constexpr int kBeatsAway = 4;  // in the time of silence that is allowed

// Nanoseconds that go on while the machine sleeps.
int64_t awake_or_not() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

RentingBeat::RentingBeat(Connect connect, os::Path directory, Duration away)
    : connect_(std::move(connect)),
      directory_(std::move(directory)),
      away_(away),
      heard_(awake_or_not() - away.count()) {
  thread_ =
      std::jthread([this](const std::stop_token& stopped) { beat(stopped); });
}

RentingBeat::~RentingBeat() = default;

bool RentingBeat::is_ours() const {
  return !is_taken_ && awake_or_not() - heard_ < away_.count();
}

Result<bool> RentingBeat::ask(std::unique_ptr<reach::Session>& session) const {
  if (session == nullptr) {
    LOCKSTEP_ASSIGN(session, connect_());
  }
  LOCKSTEP_ASSIGN(
      const auto answer,
      session->call(
          "renting",
          {{"directory", directory_.string()}},
          os::Deadline::after(away_ / 2)));
  return answer.value("client", false);
}

void RentingBeat::beat(const std::stop_token& stopped) {
  std::unique_ptr<reach::Session> session;
  while (!stopped.stop_requested() && !is_taken_) {
    const int64_t asked = awake_or_not();
    const auto ours = ask(session);
    if (!ours) {
      log_debug(ours.error().to_string());
      session.reset();
    } else if (*ours) {
      heard_ = asked;  // the head counts from later on
    } else {
      is_taken_ = true;
      log_info("from now on the head rents machines for this run");
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stopped, away_ / kBeatsAway, [] { return false; });
  }
}

}  // namespace lockstep::commands
