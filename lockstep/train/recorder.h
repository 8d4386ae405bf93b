#pragma once

// What rank 0 writes while training: metrics.csv, TensorBoard files, sample
// pictures and lines for people. Other ranks hold one that does nothing. One
// thread. Throws TrainError when a file cannot be written.

#include <map>
#include <memory>
#include <string>

#include "lockstep/record/run_directory.h"
#include "lockstep/train/recipe.h"

namespace lockstep::train {

class Recorder {
 public:
  // A resumed run keeps the rows up to `last_step`.
  Recorder(const record::RunDirectory* run, bool active, int64_t last_step);
  ~Recorder();

  void metrics(
      int64_t step,
      int64_t epoch,
      const std::map<std::string, double>& values);
  void picture(const Picture& picture, int64_t step);
  // A line on stdout, at most one in two seconds unless `important`.
  void line(const std::string& text, bool important = false);
  void flush();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;  // null when not active
};

}  // namespace lockstep::train
