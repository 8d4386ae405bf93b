#pragma once

// Ranks that another launcher starts (mpirun, srun): one shim each, which dials
// in like an agent of one rank. The group owns the launcher's process and the
// hub; index r of the group is rank r of the whole run. When a rank ends badly
// such a launcher ends all of them, so a new generation is a new start, on the
// nodes that still answer. Whatever the launcher leaves here is ended with it,
// by SIGKILL when it does not listen.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/launch/hub.h"
#include "lockstep/launch/nodes.h"
#include "lockstep/launch/rank_plan.h"
#include "lockstep/os/process.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

// How one launcher starts shims.
class ShimStarter {
 public:
  virtual ~ShimStarter() = default;
  virtual std::string name() const = 0;  // "mpirun"
  // The program that starts a shim for each of `ranks` of the plan, numbered
  // anew from 0 in this order. LOCKSTEP_SHIM is in its environment.
  virtual Result<os::SpawnOptions> command(
      const RankPlan& plan,
      const std::vector<size_t>& ranks,
      const std::string& shim_spec) = 0;
  // Whether a host whose shim went can be used again; may take seconds.
  virtual bool answers(const std::string& host) = 0;
};

struct ShimOptions {
  std::string run_id;
  Key key{};
  std::vector<std::string> head_addresses;  // hosts, without port
  os::Path folder;                          // of the run on the nodes
  HubOptions hub;
  Duration patience = std::chrono::seconds(60);  // until all have dialled in
  os::Path log;                                  // of the launcher's own words
  std::function<bool()> interrupted;             // asked often while it waits
};

class ShimGroup : public NodeGroup {
 public:
  // Starts and gathers all ranks of the plan. `starter` outlives the group.
  static Result<std::unique_ptr<ShimGroup>> open(
      ShimStarter& starter,
      const RankPlan& plan,
      const ShimOptions& options,
      const record::RunDirectory& run,
      const os::Clock& clock);
  // As the shim of a rank joined; none when it did not.
  virtual const Join* joined(size_t rank) const = 0;
  // Says bye, and ends the launcher: asked, then killed.
  virtual void close(Duration grace) = 0;
};

}  // namespace lockstep::launch
