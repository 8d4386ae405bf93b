#pragma once

// An agent without processes, for tests of hubs and loops: the test says what
// its ranks do. Commands are recorded. Thread-safe: the loop that uses it and
// the test are two threads.

#include <sys/eventfd.h>

#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/launch/agent.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::launch {

class FakeAgent : public Agent {
 public:
  // What the test and the agent share; outlives both.
  struct Script {
    Script() : wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
    std::mutex mutex;
    std::vector<Report> next;  // that receive() will tell
    std::vector<StartRequest> starts;
    std::vector<std::pair<int, Duration>> ends;
    std::vector<int> inspected;
    bool end_at_once = true;  // end() is answered by the end of all ranks
    os::Descriptor wake;

    void say(Report report) {
      const std::lock_guard lock(mutex);
      next.push_back(std::move(report));
      ::eventfd_write(wake.get(), 1);
    }
    template <class T>
    T read(T Script::* member) {
      const std::lock_guard lock(mutex);
      return this->*member;
    }
  };

  explicit FakeAgent(Script& script) : script_(script) {}
  const std::string& host() const override { return host_; }
  Result<void> start(const StartRequest& request) override {
    for (const RankCommand& command : request.commands) {
      script_.say(RankStarted{command.rank, 1000 + command.rank});
      running_.push_back(command.rank);
    }
    const std::lock_guard lock(script_.mutex);
    script_.starts.push_back(request);
    return {};
  }
  Result<void> end(int signal, Duration grace) override {
    bool now = false;
    {
      const std::lock_guard lock(script_.mutex);
      script_.ends.emplace_back(signal, grace);
      now = script_.end_at_once;
    }
    if (now && !running_.empty()) {
      for (const int rank : std::exchange(running_, {})) {
        RankExited exit;
        exit.rank = rank;
        exit.status.signal = signal;
        exit.was_stopped = true;
        script_.say(exit);
      }
      script_.say(NodeIdle{});
    }
    return {};
  }
  void inspect(int rank) override {
    {
      const std::lock_guard lock(script_.mutex);
      script_.inspected.push_back(rank);
    }
    script_.say(RankPlace{rank, "sleeping", "", ""});
  }
  int descriptor() const override { return script_.wake.get(); }
  std::vector<Report> receive(bool /*files*/, size_t /*room*/) override {
    eventfd_t count = 0;
    const std::lock_guard lock(script_.mutex);
    ::eventfd_read(script_.wake.get(), &count);
    std::vector<Report> reports = std::exchange(script_.next, {});
    for (const Report& report : reports) {
      if (std::holds_alternative<NodeIdle>(report)) {
        running_.clear();
      }
    }
    return reports;
  }
  size_t output_left() override { return 0; }

 private:
  Script& script_;
  std::string host_ = "fake";
  std::vector<int> running_;
};

}  // namespace lockstep::launch
