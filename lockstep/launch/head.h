#pragma once

// `lockstep head`: the process that owns a run which no terminal holds. It
// supervises as `lockstep run` does, writes the run directory, and says what a
// person should read into console.jsonl there; whoever follows the directory
// shows it. SIGTERM stops the run as Ctrl-C does, a second one kills it.

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/job.h"
#include "lockstep/launch/rank_plan.h"
#include "lockstep/launch/run_end.h"
#include "lockstep/os/file.h"

namespace lockstep::launch {

// One node of the run, as the front end resolved it.
struct HeadNode {
  std::string host;  // as the user wrote it
  int procs = 1;
  os::Path workdir;         // there
  os::Path trainer;         // there; empty when the job is another program
  os::Path folder;          // nodes/<id>-<node> there
  Environment environment;  // that ranks inherit there (PATH, HOME, ...)
  Environment envs;         // of this node alone, over the job's
  os::Path program;         // lockstep there, for mpirun; empty: this machine
  bool spot = false;        // its machine may be taken away at any time
};

struct HeadSpec {
  std::string launcher;  // local ssh mpi slurm
  std::string run_id;
  std::string name;
  os::Path runs_dir;  // on the head
  std::string job;    // YAML, as job_yaml prints it
  Environment secrets;
  std::string key;  // hexadecimal
  std::vector<HeadNode> nodes;
  std::string command;  // that repeats it
  std::string program;
  int retries = 0;
  std::optional<Duration> timeout;
  std::optional<Money> price_per_hour;
  std::string price_source;
  // Rented machines: how long they were there before the head, and the terms
  // of their end.
  Duration before{};
  CapTerms terms;
  int first_port = 0;
  int last_port = 0;
  // How long a restart waits for a machine in place of one that was taken away;
  // zero: nobody rents one.
  Duration replacement{};
  // Of the uploader (companion.h), and where it stores; empty: none.
  std::string uploader;
  std::string outputs;
  // Of the renter, without what the head knows better; empty: nobody rents
  // while the client is away.
  std::string renter;
  // How long agents may take to dial in.
  Duration patience = std::chrono::seconds(60);
};
Result<HeadSpec> parse_head_spec(const std::string& json);
std::string to_json(const HeadSpec& spec);
// The renter's orders with what it takes to join this run; empty: none.
// `addresses`: of the head, with their port.
std::string complete_renter_orders(
    const HeadSpec& spec,
    const std::string& setup,
    const std::vector<std::string>& addresses);

// Reads the spec from standard input; writes one line to standard output once
// it listens ("listening PORT address address ...", or "failed: reason"), then
// its standard streams go to <run>/head.log and it goes on. The exit code of
// the run. Whoever starts it leaves the session first (detached.h).
int head_main(const os::Path& own_program);

}  // namespace lockstep::launch
