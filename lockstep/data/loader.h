#pragma once

// Batches ready for a model: worker threads read, resize, normalise and stack
// ahead of the consumer. One consumer thread. The order of samples does not
// depend on the number of workers. Errors in a worker are thrown by next().

#include <ATen/core/Tensor.h>

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/resize.h"

namespace lockstep::data {

struct Batch {
  at::Tensor images;   // [n, c, h, w], float32, normalised; or uint8
  at::Tensor labels;   // [n], int64
  at::Tensor small{};  // with LoaderOptions::shrink: [n, c, h / s, w / s]
  int64_t size = 0;
  int64_t all = 0;  // samples of the batches of all ranks together
};

struct LoaderOptions {
  int64_t batch_size = 1;
  int image_size = 64;
  int image_height = 0;  // 0: image_size
  int image_width = 0;   // 0: image_size
  // Also gives each image `shrink` times smaller, made from the original by the
  // same resize; it divides height and width. 0: not.
  int shrink = 0;
  // Images are resized to this side first, and a window of image_size, random
  // by seed, epoch and sample, is cut out; 0: resized to image_size, whole.
  int crop_from = 0;
  Resize resize = Resize::kBilinear;
  // (pixel / 255 - mean) / std by channel; .5 and .5 give [-1, 1].
  std::array<float, 3> mean = {.5f, .5f, .5f};
  std::array<float, 3> stddev = {.5f, .5f, .5f};
  bool flip = false;  // random horizontal flip, by seed, epoch and sample
  // Images stay 8-bit and of the data set's own size, to be resized, changed
  // and normalised on the device (augment.h). Then nothing is flipped here.
  bool pixels = false;
  bool channels_last = true;
  bool drop_last = false;
  // Batches that make an epoch, whatever the data set has: the order goes on
  // where the epoch before left it, through the data set again and again. 0:
  // one pass.
  int64_t epoch_batches = 0;
  bool shuffle = true;
  bool pad = true;      // see ShardOptions
  bool pinned = false;  // page-locked memory, for copies to a GPU
  int workers = 1;      // 0: in the consumer's thread
  int prefetch = 2;     // batches ahead
  uint64_t seed = 0;
  int rank = 0;
  int world = 1;
};

class Loader {
 public:
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options);
  ~Loader();
  // Begins (or goes on) with batch `first` of `epoch`; drops what was ahead.
  void start(int64_t epoch, int64_t first = 0);
  // From the next start() on rank r takes shares[r] of each batch of all ranks
  // (see uneven_shard); in sum they must be batch_size() x the ranks.
  void share(const std::vector<int64_t>& shares);
  // None at the end of the epoch.
  std::optional<Batch> next();
  int64_t batches() const;     // in an epoch, on this rank
  int64_t batch_size() const;  // with equal shares

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::data
