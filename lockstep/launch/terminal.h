#pragma once

// Writes lines to a person: on a terminal with a status line below them that
// is redrawn, elsewhere plain. A thread of its own writes, so that a terminal
// that is stopped (Ctrl-S) or a slow pipe holds up nobody: room() says how
// much more it takes. Thread-safe.

#include <cstddef>
#include <memory>
#include <string>
#include <thread>

namespace lockstep::launch {

class Terminal {
 public:
  // `descriptor`: 2 as a rule. Whether it is a terminal is found out.
  explicit Terminal(int descriptor);
  // Writes what is left, for as long as the reader keeps taking some within
  // two seconds.
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool is_terminal() const { return is_terminal_; }
  void line(const std::string& text);
  // Replaces the status line; empty takes it away. Plain output: ignored.
  void status(const std::string& text);
  // Bytes that line() takes before it would hold too much.
  size_t room() const;
  // Until all is written or the reader stalls; true when all is written.
  bool drain();

 private:
  struct State;  // outlives us when its thread hangs in write()
  static void write_loop(const std::shared_ptr<State>& state);
  void start_thread();
  bool is_terminal_;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace lockstep::launch
