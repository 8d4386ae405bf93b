#pragma once

// Moves tensors between the part that each rank holds and the whole that all
// compute with: one collective for all tensors of a unit, and no copy beside
// it where the communicator takes pieces. A rank alone copies within its
// device. Elsewhere they are packed (several hosts, MPI, NCCL), and pass
// through host memory where a GPU's collective needs that. Counts the memory it
// gives out. One thread.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "lockstep/collective/communicator.h"

namespace lockstep::parallel {

class Exchange {
 public:
  Exchange(collective::Communicator& group, c10::Device device);

  // A transfer under way; its tensors must live until wait() returns.
  class Flight {
   public:
    Flight() = default;  // landed
    Flight(collective::Work work, std::function<void()> land)
        : work_(std::move(work)), land_(std::move(land)) {}
    collective::Timing wait();

   private:
    collective::Work work_;
    std::function<void()> land_;
  };

  // Flat and zeroed, on the device, where collectives reach it.
  at::Tensor allocate(int64_t count, at::ScalarType type);

  // `pieces` must outlive the flight.
  Flight gather(
      const collective::Pieces& pieces,
      const at::Tensor& part,
      const at::Tensor& whole);
  // Sums.
  Flight scatter(
      const collective::Pieces& pieces,
      const at::Tensor& whole,
      const at::Tensor& part);

  // Of the tensors that allocate() gave and that still live.
  int64_t bytes() const { return count_->now; }
  int64_t peak_bytes() const { return count_->peak; }

 private:
  struct Count {
    int64_t now = 0;
    int64_t peak = 0;
  };
  at::Tensor make(int64_t count, at::ScalarType type, c10::Device device) const;
  // [ranks, part]: where packed pieces travel.
  at::Tensor take_staging(
      const collective::Pieces& pieces,
      at::ScalarType type);

  collective::Communicator& group_;
  c10::Device device_;
  bool direct_;
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
  std::vector<at::Tensor> staging_;  // idle
};

}  // namespace lockstep::parallel
