#pragma once

// A data set whose images, all of one size, lie decoded in memory.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

struct ImageArray {
  int height = 0;
  int width = 0;
  int channels = 0;
  std::vector<uint8_t> pixels;  // image after image, rows of interleaved pixels
  std::vector<uint8_t> labels;  // one an image
  std::vector<std::string> classes;
};

class ArrayDataset final : public Dataset {
 public:
  explicit ArrayDataset(ImageArray images);
  int64_t size() const override;
  int channels() const override { return images_.channels; }
  Size image_size() const override { return {images_.height, images_.width}; }
  std::vector<std::string> classes() const override { return images_.classes; }
  int64_t label(int64_t index) const override;
  void read(int64_t index, RawImage& image) const override;

 private:
  ImageArray images_;
  size_t image_bytes_;
};

// Throws DataError("<where>: label 12 of image 3 ...") for one that is not
// below num_classes.
void check_labels(
    const std::vector<uint8_t>& labels,
    size_t num_classes,
    const std::string& where);

}  // namespace lockstep::data
