#pragma once

// How we speak to the system's ssh: its command line, the words that start a
// far end through any login shell, and what its failures mean. Pure, but for
// ssh_command, which reads the environment and makes the control folder.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"
#include "lockstep/reach/session.h"

namespace lockstep::reach {

// ssh with its options, up to the host. `batch`: it must not ask anything.
Result<std::vector<std::string>> ssh_command(
    const ReachOptions& options,
    bool batch);

struct Bootstrap {
  std::string hash;      // of the program to run
  std::string mark;      // each line for us begins so; unique to the session
  std::string far_home;  // where LOCKSTEP_HOME is not set; empty: the default
};
// One word for ssh. Lines that it prints after the mark:
//   here                   the far end follows
//   absent MACHINE PACKED  reads the number of bytes as a line, then those
//                          bytes; PACKED is gzip or raw
//   sent                   they are in place, the far end follows
//   failed                 they are not; why is on standard error
Result<std::string> bootstrap_command(const Bootstrap& bootstrap);

// What was being done when the session ended.
enum class Stage { kConnect, kPlace, kStart, kTalk };

// `words` is what ssh and the far side wrote to standard error.
Error explain_failure(
    const std::string& host,
    Stage stage,
    const std::string& words);

// The same attempt may succeed at once: too many log-ins at a time, or a
// shared connection that had just ended.
bool is_passing(const std::string& words);
// A person at the terminal can help: a passphrase, a password, a new host.
bool needs_person(const std::string& words);

}  // namespace lockstep::reach
