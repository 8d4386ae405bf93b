#pragma once

// The exponential moving average of parameters: a <- d a + (1 - d) p after
// each step, with d rising from 1/11 to `decay` over the first steps, so that
// the average forgets the initial weights. Validation, test and published
// checkpoints use the average; training goes on with the parameters. One
// thread.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/parallel/ddp.h"

namespace lockstep::train {

class Ema {
 public:
  // Begins with a copy of what the parameters are now.
  Ema(double decay, parallel::NamedTensors parameters);

  void update(int64_t step);  // from 1
  // The averages under the parameters' names.
  const parallel::NamedTensors& averages() const { return averages_; }
  const parallel::NamedTensors& parameters() const { return parameters_; }

  // For a scope the parameters hold the averages, and the other way round.
  class InPlace {
   public:
    explicit InPlace(Ema* ema) : ema_(ema) { exchange(); }  // null: nothing
    ~InPlace() { exchange(); }
    InPlace(const InPlace&) = delete;
    InPlace& operator=(const InPlace&) = delete;

   private:
    void exchange();
    Ema* ema_;
  };

 private:
  double decay_;
  parallel::NamedTensors parameters_;
  parallel::NamedTensors averages_;
};

}  // namespace lockstep::train
