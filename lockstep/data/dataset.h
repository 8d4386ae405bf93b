#pragma once

// Data sets of images with labels, read from disk into memory or decoded on
// demand. read() is safe from several threads. Failures throw DataError: a
// missing set names the command that fetches it, a corrupt file is named with
// what is wrong in it.

#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace lockstep::data {

class DataError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// 8-bit pixels, rows of interleaved channels. `pixels` points into the data
// set, or into `storage` when the image had to be decoded.
struct RawImage {
  int height = 0;
  int width = 0;
  int channels = 3;
  std::span<const uint8_t> pixels;
  std::vector<uint8_t> storage;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  virtual int channels() const = 0;  // 1 or 3, equal for all images
  // Pixels of all images; 0 by 0 where they differ.
  struct Size {
    int height = 0;
    int width = 0;
  };
  virtual Size image_size() const { return {}; }
  virtual std::vector<std::string> classes() const = 0;
  virtual int64_t label(int64_t index) const = 0;
  virtual void read(int64_t index, RawImage& image) const = 0;
  // What read() has found to be no good and passed over (tolerant.h); and what
  // other ranks have: too many together throw.
  virtual std::vector<int64_t> passed_over() const { return {}; }
  virtual void add_passed_over(std::span<const int64_t> /*indices*/) const {}
  // For messages: its file, where it has one of its own.
  virtual std::string name(int64_t index) const {
    return std::to_string(index);
  }
};

struct DatasetOptions {
  std::string name;       // cifar10 mnist fashion_mnist folder synthetic
  std::string root;       // empty: the cache folder that `data get` fills
  bool train = true;      // the official split
  int64_t limit = 0;      // first N samples; 0: all
  int64_t length = 1024;  // synthetic: how many
  int image_size = 64;    // synthetic: side
  int channels = 3;       // synthetic
  int num_classes = 10;   // synthetic
  uint64_t seed = 0;      // synthetic
};

std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options);
std::vector<std::string> dataset_names();

// $LOCKSTEP_DATA, else $XDG_CACHE_HOME/lockstep/data, else ~/.cache/...
std::string data_cache();

}  // namespace lockstep::data
