#pragma once

// A node, reached: one ssh session with a far end behind it. The system's ssh
// is used as it is (config, agent, jump hosts, ports), with one multiplexed
// connection a host. When lockstep is not on the node, by content, it is sent
// first through the same session; nothing else is needed there than sh and a
// libc of ours.
//
// LOCKSTEP_SSH names the ssh program, LOCKSTEP_SSH_OPTIONS more options (words
// apart by spaces); LOCKSTEP_FAR_HOME is the home of lockstep on nodes that set
// no LOCKSTEP_HOME of their own. A key that needs a passphrase, or a host that
// is new, is asked about on the terminal, one host after the other.
//
// Errors say which host, what ssh said, and what to do: unknown host, refused
// key, wrong user, changed host key, no space, read-only home, another
// architecture.

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/file.h"

namespace lockstep::reach {

struct ReachOptions {
  os::Path program;                      // the lockstep binary to send
  std::vector<std::string> ssh_options;  // as in "-o", "Port=2222"
  os::Path control_folder;  // for the multiplexing sockets; empty: a private
                            // one with a short path
  Duration patience = std::chrono::seconds(20);
};

class Session {
 public:
  virtual ~Session() = default;
  virtual const std::string& host() const = 0;
  // One request and its answer. An Error of the far end comes back as it was,
  // with the host as context; a session that broke gives kUnavailable.
  virtual Result<nlohmann::json> call(
      const std::string& verb,
      nlohmann::json arguments,
      os::Deadline deadline) = 0;
  // Requests that `next` makes until it gives none, many under way at once;
  // the first error ends it. For verbs with short answers, which are dropped.
  virtual Result<void> call_many(
      const std::string& verb,
      const std::function<Result<std::optional<nlohmann::json>>()>& next,
      Duration stall) {
    while (true) {
      LOCKSTEP_ASSIGN(auto arguments, next());
      if (!arguments) {
        return {};
      }
      LOCKSTEP_TRY(call(verb, *arguments, os::Deadline::after(stall)));
    }
  }
  // True when lockstep had to be sent.
  virtual bool was_sent() const = 0;
  // What it took to come here.
  virtual Duration took() const { return {}; }
};

Result<std::unique_ptr<Session>> reach(
    const std::string& host,
    const ReachOptions& options);

// All of them side by side; the result of each, in the order given.
std::vector<Result<std::unique_ptr<Session>>> reach_all(
    const std::vector<std::string>& hosts,
    const ReachOptions& options);

}  // namespace lockstep::reach
