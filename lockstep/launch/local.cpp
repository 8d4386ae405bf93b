#include <algorithm>

#include "lockstep/launch/launcher.h"
#include "lockstep/launch/local_agent.h"
#include "lockstep/os/host.h"

namespace lockstep::launch {
namespace {

// This machine as the only node.
class LocalGroup : public NodeGroup {
 public:
  explicit LocalGroup(std::unique_ptr<Agent> agent)
      : agent_(std::move(agent)) {}

  size_t size() const override { return 1; }
  const std::string& host(size_t) const override { return agent_->host(); }
  bool is_lost(size_t) const override { return lost_; }
  Result<void> start(size_t, const StartRequest& request) override {
    return agent_->start(request);
  }
  void end(int signal, Duration grace) override {
    (void)agent_->end(signal, grace).has_value();
  }
  void inspect(size_t, int rank) override { agent_->inspect(rank); }
  int descriptor() const override { return agent_->descriptor(); }
  std::vector<NodeReport> receive(bool files, size_t room) override {
    std::vector<NodeReport> reports;
    for (Report& report : agent_->receive(files, room)) {
      lost_ |= std::holds_alternative<NodeLost>(report);
      reports.push_back({0, std::move(report)});
    }
    return reports;
  }
  size_t output_left() override { return agent_->output_left(); }

 private:
  std::unique_ptr<Agent> agent_;
  bool lost_ = false;
};

class LocalLauncher : public Launcher {
 public:
  explicit LocalLauncher(os::Path program) : program_(std::move(program)) {}

  std::string name() const override { return "local"; }

  Result<std::vector<PlannedNode>> nodes(int procs) override {
    PlannedNode node;
    node.host = host_name();
    node.interface = "lo";
    node.cores = own_cores();
    // Looking for GPUs loads a driver library: only when it matters.
    node.procs =
        procs > 0 ? procs
                  : std::max(1, static_cast<int>(os::host_facts().gpus.size()));
    return std::vector<PlannedNode>{node};
  }

  Result<std::unique_ptr<NodeGroup>> start_agents() override {
    LOCKSTEP_ASSIGN(auto agent, start_local_agent(program_));
    return std::make_unique<LocalGroup>(std::move(agent));
  }

  std::string head_address() const override { return "127.0.0.1"; }

 private:
  os::Path program_;
};

}  // namespace

std::unique_ptr<Launcher> make_local_launcher(os::Path program) {
  return std::make_unique<LocalLauncher>(std::move(program));
}

}  // namespace lockstep::launch
