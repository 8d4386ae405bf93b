#pragma once

// Where agents and shims dial in. One thread, one epoll (connections.h): a
// thousand agents cost what their messages cost.
//
// A node whose connection was closed has `patience` to come back; one that is
// connected and silent for `lease` is lost. A lost node that came back is
// present(), and takes part again after readmit(). receive() does all the work:
// call it a few times a second.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/launch/agent_protocol.h"
#include "lockstep/launch/nodes.h"
#include "lockstep/os/clock.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

struct HubOptions {
  std::string address = "0.0.0.0";
  int first_port = 0;  // 0: any free one
  int last_port = 0;
  size_t nodes = 0;  // how many agents belong to the run
  // Names for messages, by node; empty: as each one says.
  std::vector<std::string> hosts;
  Duration beat = kBeat;
  Duration lease = kLease;
  Duration patience = std::chrono::seconds(2);
};

class Hub : public NodeGroup {
 public:
  // `run`: where logs of ranks are written, by offset.
  static Result<std::unique_ptr<Hub>> open(
      const HubOptions& options,
      const Key& key,
      const record::RunDirectory& run,
      const os::Clock& clock);

  virtual int port() const = 0;
  // Waits until every node has joined; an error names the missing ones.
  virtual Result<void> gather(os::Deadline deadline) = 0;
  // As it joined; none when it never did.
  virtual const Join* joined(size_t node) const = 0;
  // Connections that were refused, ever.
  virtual size_t refused() const = 0;
  // Says bye to all and waits until they have heard it.
  virtual void close(os::Deadline deadline) = 0;
};

}  // namespace lockstep::launch
