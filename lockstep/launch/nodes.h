#pragma once

// The nodes of a generation as the supervisor sees them: it starts commands on
// each, ends all, and receives what happens. Behind it stand one keeper on this
// machine (local.cpp), agents or shims that dialled in (hub.h), or a fake.
// One thread; nothing here blocks.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/launch/agent.h"

namespace lockstep::launch {

struct NodeReport {
  size_t node = 0;
  Report report;
};

class NodeGroup {
 public:
  virtual ~NodeGroup() = default;
  virtual size_t size() const = 0;
  virtual const std::string& host(size_t node) const = 0;
  virtual bool is_lost(size_t node) const = 0;
  // True while the connection with a node is broken, or it missed beats, before
  // it is lost.
  virtual bool any_away() const { return false; }
  // Starts all commands on a node; each is answered by RankStarted or
  // RankRefused. A command's paths are those of that node.
  virtual Result<void> start(size_t node, const StartRequest& request) = 0;
  // The signal to all ranks of all nodes now, SIGKILL to whatever is left
  // after `grace`. NodeIdle (or NodeLost) follows from each.
  virtual void end(int signal, Duration grace) = 0;
  // Asks where a rank sits; answered by RankPlace.
  virtual void inspect(size_t node, int rank) = 0;
  // Nodes that a new generation can use, lost ones that came back included:
  // such a one takes part again after readmit().
  virtual std::vector<size_t> present() const {
    std::vector<size_t> found;
    for (size_t node = 0; node < size(); ++node) {
      if (!is_lost(node)) {
        found.push_back(node);
      }
    }
    return found;
  }
  virtual void readmit(size_t /*node*/) {}
  // Of whoever speaks for the node now: a machine in its place has another.
  virtual std::string session(size_t /*node*/) const { return ""; }
  // Readable when receive() has something to say.
  virtual int descriptor() const = 0;
  // What happened since the last call, of nodes that have news only: its cost
  // follows the news, not the number of nodes. `files` and `room` as in
  // Agent::receive.
  virtual std::vector<NodeReport> receive(bool files, size_t room) = 0;
  // Bytes of output that did not come yet: wanted by reports, or on their way
  // from a node to its log here.
  virtual size_t output_left() = 0;
};

}  // namespace lockstep::launch
