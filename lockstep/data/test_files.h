#pragma once

// What the tests of data/ share: temporary folders and tiny data sets in every
// layout. For tests only.

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data::testing {

using Bytes = std::vector<uint8_t>;

// A folder of its own, removed at the end.
class Folder {
 public:
  Folder();
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }
  std::string at(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const Bytes& bytes) const;
  std::string write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;
};

Bytes gzip(const Bytes& bytes);
// idx files of `count` images of height x width; pixel p of image i is
// (i * 7 + p) % 256, its label i % 10.
Bytes idx_images(uint32_t count, uint32_t height, uint32_t width);
Bytes idx_labels(uint32_t count);
// CIFAR-10: image i has label i % 10, and these pixels.
uint8_t cifar_pixel(int image, int channel, int position);
Bytes cifar_binary(int count, int first = 0);
// As Python 2's cPickle wrote the official files.
Bytes cifar_pickle(int count, int first = 0);
// RGB images as files.
Bytes png(int height, int width, const Bytes& rgb);
Bytes jpeg(int height, int width, const Bytes& rgb, int quality = 95);

// Runs and returns the message of the DataError that must come.
template <class Function>
std::string data_error(Function function) {
  try {
    function();
  } catch (const DataError& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected a DataError";
  return {};
}

}  // namespace lockstep::data::testing
