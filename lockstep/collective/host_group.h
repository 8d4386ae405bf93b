#pragma once

// The members of a `host` group, connected: who sits where, the shared memory
// with the ranks of this host, the ring between hosts, and the watcher that
// notices a dead rank. Shared by the communicator and its operations under
// way. abort() from any thread; the rest as its parts say.

#include <memory>
#include <mutex>
#include <string>

#include "lockstep/collective/factory.h"
#include "lockstep/collective/members.h"
#include "lockstep/collective/ring.h"
#include "lockstep/collective/shared_group.h"
#include "lockstep/collective/watcher.h"

namespace lockstep::collective {

class HostGroup {
 public:
  // Blocks until all ranks are connected; throws CollectiveError.
  static std::shared_ptr<HostGroup> join(
      const GroupOptions& options,
      wire::Rendezvous& rendezvous);
  ~HostGroup();

  int rank() const { return options_.rank; }
  int size() const { return options_.world_size; }
  const GroupOptions& options() const { return options_; }
  const Layout& layout() const { return layout_; }
  // The ranks of this host, and our place among them.
  const std::vector<int>& local_ranks() const { return layout_.hosts[host_]; }
  int local_index() const { return index_; }
  const std::shared_ptr<Memory>& memory() const { return options_.memory; }
  SharedGroup& shared() { return *shared_; }
  // Between hosts; only on the first rank of each, when there are several.
  Ring* ring() { return ring_.get(); }
  // The ranks that look further away wait this much longer, so that the rank
  // nearest to a missing one names it.
  Duration margin() const;

  // Ends every wait of every rank; the first reason stays.
  void abort(const Failure& failure);

 private:
  void spread(const Failure& failure);
  explicit HostGroup(const GroupOptions& options);
  void connect_local(wire::Rendezvous& rendezvous, os::Deadline deadline);
  void connect_hosts(wire::Rendezvous& rendezvous, os::Deadline deadline);

  GroupOptions options_;
  Layout layout_;
  size_t host_ = 0;
  int index_ = 0;
  bool spin_ = true;
  std::mutex spreading_;
  bool spread_ = false;
  os::Descriptor aborted_;  // readable once the group is dead
  std::unique_ptr<SharedGroup> shared_;
  std::unique_ptr<Ring> ring_;
  std::unique_ptr<Watcher> watcher_;
};

// The communicator of kind "host".
std::unique_ptr<Communicator> make_host_communicator(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous);

}  // namespace lockstep::collective
