#pragma once

// Where a rank sits: state and kernel wait channel from /proc, how busy it is,
// a Python stack by py-spy and a native one by gdb where those are installed.
// The tools run as children with a deadline; nothing here waits for them. A
// rank that is a shell with a program below it is looked through. One thread.

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/units.h"
#include "lockstep/launch/agent.h"

namespace lockstep::launch {

struct PlaceTools {
  std::string gdb = "gdb";  // looked up in PATH; empty: never
  std::string py_spy = "py-spy";
  Duration watch = std::chrono::milliseconds(400);  // how busy it is
  Duration patience = std::chrono::seconds(6);      // with each tool
};

class PlaceProbe;

// The looks that are under way on a node.
class Places {
 public:
  explicit Places(PlaceTools tools = {});
  ~Places();  // kills the tools

  void inspect(int rank, int pid);
  // Those that are done. Call some times a second while waiting().
  std::vector<RankPlace> collect();
  bool waiting() const { return !queue_.empty() || !probes_.empty(); }
  // Kills the tools: a rank that is looked at does not react to signals.
  void cancel();

 private:
  struct Wish {
    int rank = 0;
    int pid = 0;
  };
  PlaceTools tools_;
  std::deque<Wish> queue_;
  std::vector<std::unique_ptr<PlaceProbe>> probes_;
};

// One look that waits for its end; for tests and small tools.
RankPlace place_of(int rank, int pid, const PlaceTools& tools = {});

// The parts that read text.
// "sleeping in futex_wait_queue" from the contents of /proc/PID/{status, wchan,
// stack,syscall}; what could not be read is empty.
std::string describe_state(
    const std::string& status,
    const std::string& wchan,
    const std::string& stack,
    const std::string& syscall);
// Frames of gdb's "bt" as "function (file:line)", at most `most`.
std::vector<std::string> gdb_frames(const std::string& output, size_t most);
// Frames of the main thread (of the one that holds the interpreter when there
// is such) in the text of `py-spy dump`.
std::vector<std::string> python_frames(const std::string& output, size_t most);

}  // namespace lockstep::launch
