#include "lockstep/train/monitor.h"

#include "lockstep/os/clock.h"
#include "lockstep/os/host.h"
#include "lockstep/os/nvml.h"
#include "lockstep/record/event_log.h"

namespace lockstep::train {
namespace {

// Among NVML's GPUs; -1: none of them.
int index_of(const std::optional<std::string>& gpu) {
  const auto gpus = gpu ? os::look_at_gpus() : std::vector<os::GpuLook>();
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (os::is_same_gpu(gpus[i].address, *gpu)) {
      return static_cast<int>(i);
    }
  }
  return gpus.size() == 1 ? 0 : -1;
}

}  // namespace

Monitor::Monitor(
    record::EventWriter& events,
    Duration period,
    const std::optional<std::string>& gpu)
    : events_(events),
      thread_([this, period, gpu] { run(period, index_of(gpu)); }) {}

Monitor::~Monitor() {
  {
    std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Monitor::run(Duration period, int gpu) {
  auto before = os::resource_use();
  auto since = os::real_clock().now();
  std::unique_lock lock(mutex_);
  while (true) {
    const bool last = wake_.wait_for(lock, period, [this] { return done_; });
    const auto use = os::resource_use();
    const auto now = os::real_clock().now();
    const double seconds = to_seconds(now - since);
    wire::Resource sample;
    sample.resident_bytes = static_cast<double>(use.resident.count);
    sample.cpu =
        seconds > 0 ? (use.cpu_seconds - before.cpu_seconds) / seconds : 0;
    if (gpu >= 0 && gpu < static_cast<int>(use.gpu_use.size())) {
      sample.gpu_use = use.gpu_use[gpu];
      sample.gpu_memory_bytes = static_cast<double>(use.gpu_memory[gpu].count);
    }
    events_.write(sample);
    before = use;
    since = now;
    if (last) {
      return;
    }
  }
}

}  // namespace lockstep::train
