#pragma once

// console.jsonl in a run directory: what a head has to say to a person, one
// JSON object a line ({"time", "kind": "say" | "alarm", "text"}). The head
// writes it, whoever follows the run shows it. Output of ranks is not repeated
// there: it stands in their logs. One thread each.

#include <memory>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/tail.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

class ConsoleFile : public Console {
 public:
  static Result<std::unique_ptr<ConsoleFile>> open(
      const record::RunDirectory& run,
      const os::Clock& clock);
  void output(int, const std::string&) override {}
  void say(const std::string& text) override { write("say", text); }
  void alarm(const std::string& text) override { write("alarm", text); }
  void update(const LiveState&, int, Duration, std::optional<Money>) override {}
  size_t room() const override { return 1 << 20; }
  bool wait_for_room() override { return true; }

 private:
  ConsoleFile(std::unique_ptr<os::Appender> file, const os::Clock& clock)
      : file_(std::move(file)), clock_(clock) {}
  void write(const char* kind, const std::string& text);
  std::unique_ptr<os::Appender> file_;
  const os::Clock& clock_;
};

os::Path console_path(const record::RunDirectory& run);

// Shows what is new on each call. Lines that cannot be read are passed over.
class ConsoleReader {
 public:
  explicit ConsoleReader(const record::RunDirectory& run)
      : tail_(console_path(run)) {}
  // The path `there`, of the head, is shown as `here`, where its mirror lies.
  void show(
      Console& console,
      const std::string& there = "",
      const std::string& here = "");

 private:
  Tail tail_;
};

}  // namespace lockstep::launch
