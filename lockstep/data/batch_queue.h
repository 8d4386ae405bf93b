#pragma once

// The engine of the loader, without tensors: worker threads fill batches of
// plain memory ahead of one consumer, in the order of the indices whatever the
// number of workers. Memory is asked for on the consumer's thread only. An
// error in a worker is thrown by next() when its batch is due, and again until
// the next start().

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/resize.h"

namespace lockstep::data {

struct BatchMemory {
  float* images = nullptr;
  float* small = nullptr;     // beside them, where the queue is asked for it
  uint8_t* pixels = nullptr;  // instead, where the queue gives pixels
  int64_t* labels = nullptr;
  std::shared_ptr<void> owner;  // keeps both alive
  int64_t size = 0;             // samples
};

struct BatchQueueOptions {
  ResizeOptions resize;
  // The same images once more in another size, each from the original.
  std::optional<ResizeOptions> small;
  // Side of a random window of the resized image, by seed, epoch and sample,
  // in channels_last; 0: all of it.
  int crop = 0;
  bool flip = false;  // random, by seed, epoch and sample
  // Pixels as the data set has them, unchanged, instead of floats; it must
  // have one size of images.
  bool pixels = false;
  uint64_t seed = 0;
  int workers = 1;   // 0: next() itself does the work
  int prefetch = 2;  // batches ahead, at least 1
};

class BatchQueue {
 public:
  using Allocate = std::function<BatchMemory(int64_t size)>;
  BatchQueue(
      std::shared_ptr<const Dataset> dataset,
      const BatchQueueOptions& options,
      Allocate allocate);
  // Waits at most for the samples that workers have in hand.
  ~BatchQueue();
  // Batches of `batch_size` indices from batch `first` to before `end`; what
  // was ahead is dropped.
  void start(
      std::vector<int64_t> indices,
      int64_t batch_size,
      int64_t first,
      int64_t end,
      int64_t epoch);
  std::optional<BatchMemory> next();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::data
