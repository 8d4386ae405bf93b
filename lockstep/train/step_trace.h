#pragma once

// A few steps as a trace that chrome://tracing and Perfetto open: operations
// on a CPU, kernels on a GPU. For who asks where a step spends its time
// (trainer.trace_steps). Steps that are traced are slower.

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>

namespace lockstep::train {

class StepTrace {
 public:
  // The first steps tune, capture graphs and fill caches; none is traced.
  static constexpr int64_t kSkipped = 20;

  // With `steps` 0 nothing is ever traced.
  StepTrace(int64_t steps, c10::Device device, std::filesystem::path file);
  // Ends a trace that is under way, without a file.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  // Call before each step. True when the step before was the last one traced:
  // the file is there. Throws TrainError when it cannot be written.
  bool before_step();
  // Call after the last step. True when the run ended within the traced steps:
  // the file has those that there were.
  bool finish();
  // Steps were asked for and none has been written.
  bool is_missing() const { return steps_ > 0 && !written_; }

 private:
  void begin();
  void end();

  int64_t steps_;
  c10::Device device_;
  std::filesystem::path file_;
  int64_t begun_ = 0;  // steps so far
  bool tracing_ = false;
  bool written_ = false;
};

}  // namespace lockstep::train
