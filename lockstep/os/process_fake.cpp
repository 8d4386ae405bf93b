#include <fmt/format.h>

#include "lockstep/os/process.h"

namespace lockstep::os {
namespace {

class FakeProcess : public Process {
 public:
  FakeProcess(FakeProcesses& all, size_t index) : all_(&all), index_(index) {}
  int pid() const override { return 1000 + static_cast<int>(index_); }
  Result<std::optional<ExitStatus>> poll() override {
    return all_->endings[index_];
  }
  Result<ExitStatus> wait(Deadline) override {
    if (!all_->endings[index_]) {
      return Error(
          ErrorCode::kTimeout, fmt::format("process {} still runs", pid()));
    }
    return *all_->endings[index_];
  }
  Result<void> signal(int number) override {
    all_->signals[index_].push_back(number);
    return {};
  }

 private:
  FakeProcesses* all_;
  size_t index_;
};

}  // namespace

Result<std::unique_ptr<Process>> FakeProcesses::spawn(
    const SpawnOptions& options) {
  size_t index = spawned.size();
  spawned.push_back(options);
  signals.resize(std::max(signals.size(), index + 1));
  endings.resize(std::max(endings.size(), index + 1));
  return std::make_unique<FakeProcess>(*this, index);
}

}  // namespace lockstep::os
