#include "lockstep/train/step_trace.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "lockstep/train/error.h"

namespace lockstep::train {
namespace {

namespace impl = torch::profiler::impl;
namespace profiler = torch::autograd::profiler;

}  // namespace

StepTrace::StepTrace(
    int64_t steps,
    c10::Device device,
    std::filesystem::path file)
    : steps_(steps), device_(device), file_(std::move(file)) {}

StepTrace::~StepTrace() {
  if (tracing_) {
    profiler::disableProfiler();
  }
}

bool StepTrace::before_step() {
  if (steps_ == 0) {
    return false;
  }
  const int64_t step = begun_++;
  if (step == kSkipped) {
    begin();
  }
  if (step == kSkipped + steps_) {
    end();
    return true;
  }
  return false;
}

bool StepTrace::finish() {
  if (!tracing_) {
    return false;
  }
  end();
  return true;
}

void StepTrace::begin() {
  const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
  const std::set<impl::ActivityType> activities = {
      device_.is_cuda() ? impl::ActivityType::CUDA : impl::ActivityType::CPU};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  tracing_ = true;
}

void StepTrace::end() {
  if (device_.is_cuda()) {
    c10::impl::VirtualGuardImpl(device_.type())
        .synchronizeDevice(device_.index());
  }
  tracing_ = false;
  profiler::disableProfiler()->save(file_.string());
  if (!std::filesystem::exists(file_)) {
    throw TrainError(
        kFailed, fmt::format("{}: cannot write the trace", file_.string()));
  }
  written_ = true;
}

}  // namespace lockstep::train
