#pragma once

// The side of a node: starts commands there, ends them, and reports what
// happens, output and events included. On this machine a LocalAgent stands
// behind it; a remote agent speaks the same words over a connection. One
// thread uses an Agent. Nothing here blocks: the owner polls descriptor() and
// calls receive().

#include <string>
#include <variant>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/launch/rank_plan.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"
#include "lockstep/os/process.h"
#include "lockstep/wire/event.h"

namespace lockstep::launch {

// The rank of a command that prepares a node rather than takes part.
inline constexpr int kSetupRank = -1;

struct RankCommand {
  int rank = 0;
  std::vector<std::string> argv;
  Environment environment;  // all of it
  os::Path directory;
  os::Path log;       // stdout and stderr append there
  os::Path events;    // that the rank may write; empty: none are read
  bool show = false;  // its output is wanted as reports
  // Read events from its output, for programs that write none; may be empty.
  std::string iteration_pattern;
  std::string epoch_pattern;
  // Run once the rank's process is gone, however it ended, with its variables:
  // ends what is not below it (a container). May be empty.
  std::vector<std::string> after;
};

struct StartRequest {
  int generation = 0;
  std::vector<RankCommand> commands;
  int stop_signal = 15;
  // How long ranks may take to end when whoever started them is gone.
  Duration orphan_grace{};
};

// Reports. Exits of one keeper with the same `batch` were seen at the same
// moment, so their order says nothing. Instants are on the monotonic clock of
// the process that holds the report: a hub turns those of a node into its own.
struct RankStarted {
  int rank = 0;
  int pid = 0;
};
struct RankRefused {  // the program could not be executed
  int rank = 0;
  std::string reason;
};
struct RankExited {
  int rank = 0;
  int pid = 0;
  int keeper = 0;  // its pid: who counted the batches
  int batch = 0;
  os::Instant ended;  // when the keeper saw it
  os::Instant spoke;  // when it last wrote to its log, if it failed
  os::ExitStatus status;
  bool out_of_memory = false;  // the kernel ended it, by cgroup or its log
  bool was_stopped = false;    // after a signal of ours
  std::vector<std::string> last_lines;  // of its log, when it failed
};
struct RankEvent {
  wire::Event event;
  std::string line;  // as the rank wrote it
};
struct RankOutput {
  int rank = 0;
  std::string line;
};
struct RankPlace {  // where a rank sits, as far as the node can tell
  int rank = 0;
  std::string state;    // "sleeping in futex_wait_queue", "running"
  std::string stack;    // of gdb or py-spy, lines; empty when neither is there
  std::string missing;  // the tool that would tell more, and how to get it
};
struct NodeIdle {};  // every rank ended and nothing of them is left
struct NodeLost {
  std::string reason;
  os::Instant since{};  // its last sign of life
};
// The machine was told that it will be taken away, or may be.
struct NodeNotice {
  std::string kind;    // "interruption", "rebalance"
  double at = 0;       // Unix seconds: of the end, or of the hint
  std::string action;  // "terminate", "stop"; empty: not told
  bool operator==(const NodeNotice&) const = default;
};
// "interruption: terminate at 2026-11-15T22:00:00Z".
std::string to_string(const NodeNotice& notice);
using Report = std::variant<
    RankStarted,
    RankRefused,
    RankExited,
    RankEvent,
    RankOutput,
    RankPlace,
    NodeIdle,
    NodeLost,
    NodeNotice>;

class Agent {
 public:
  virtual ~Agent() = default;
  virtual const std::string& host() const = 0;
  // Starts all commands; each is answered by RankStarted or RankRefused.
  virtual Result<void> start(const StartRequest& request) = 0;
  // The signal to all ranks now, SIGKILL to whatever is left after `grace`.
  // NodeIdle follows.
  virtual Result<void> end(int signal, Duration grace) = 0;
  // The ranks end by themselves (NodeLost) when this is not called again within
  // `left`, whatever keeps the caller; one that stays silent for `patience` on
  // top of it is ended, too. Never called: they run for as long as we do.
  virtual void renew(Duration /*left*/, Duration /*patience*/) {}
  // Asks where a rank sits; answered by RankPlace.
  virtual void inspect(int rank) = 0;
  // Readable when receive() has something to say; -1: call it on every tick.
  virtual int descriptor() const = 0;
  // What happened since the last call. `files`: look at output and events too
  // (costs a look at each file; the owner does so some times a second, and a
  // last time after NodeIdle). Of the output at most `room` bytes come, so a
  // slow reader holds back nothing but itself: the rest waits in the logs.
  virtual std::vector<Report> receive(bool files, size_t room) = 0;
  // Bytes of wanted output that did not come yet.
  virtual size_t output_left() = 0;
};

}  // namespace lockstep::launch
