#pragma once

// What a person sees while a run goes on: the lines of rank 0 (or of all, with
// the rank in front) and how far it is: a line that is redrawn on a terminal,
// a plain line every few seconds elsewhere.

#include <optional>
#include <string>

#include "lockstep/base/units.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/live.h"
#include "lockstep/launch/terminal.h"
#include "lockstep/os/clock.h"

namespace lockstep::launch {

// "epoch 0  step 120/7500  loss_d 0.71  1250 samples/s  $0.002  eta 1m 05s".
// Parts that are not known are left out; empty while nothing is.
std::string progress_text(
    const LiveState& live,
    int world_size,
    Duration elapsed,
    std::optional<Money> cost);

class Progress : public Console {
 public:
  // `quiet`: nothing is shown. `prefix`: lines carry "[r3] ".
  Progress(Terminal& terminal, const os::Clock& clock, bool quiet, bool prefix)
      : terminal_(terminal), clock_(clock), quiet_(quiet), prefix_(prefix) {}

  void output(int rank, const std::string& line) override;
  void say(const std::string& text) override;
  void alarm(const std::string& text) override { terminal_.line(text); }
  void update(
      const LiveState& live,
      int world_size,
      Duration elapsed,
      std::optional<Money> cost) override;
  void close() { terminal_.status(""); }
  size_t room() const override { return quiet_ ? 1 << 20 : terminal_.room(); }
  bool wait_for_room() override { return quiet_ || terminal_.drain(); }

 private:
  Terminal& terminal_;
  const os::Clock& clock_;
  bool quiet_;
  bool prefix_;
  std::optional<os::Instant> drawn_;
  std::string last_;
};

}  // namespace lockstep::launch
