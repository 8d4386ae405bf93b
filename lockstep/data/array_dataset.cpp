#include "lockstep/data/array_dataset.h"

#include <fmt/format.h>

#include "lockstep/base/check.h"

namespace lockstep::data {

ArrayDataset::ArrayDataset(ImageArray images)
    : images_(std::move(images)),
      image_bytes_(
          static_cast<size_t>(images_.height) *
          static_cast<size_t>(images_.width) *
          static_cast<size_t>(images_.channels)) {
  LOCKSTEP_CHECK_EQ(
      images_.pixels.size(), images_.labels.size() * image_bytes_);
}

int64_t ArrayDataset::size() const {
  return static_cast<int64_t>(images_.labels.size());
}

int64_t ArrayDataset::label(int64_t index) const {
  return images_.labels.at(static_cast<size_t>(index));
}

void ArrayDataset::read(int64_t index, RawImage& image) const {
  LOCKSTEP_CHECK(index >= 0 && index < size());
  image.height = images_.height;
  image.width = images_.width;
  image.channels = images_.channels;
  image.pixels =
      std::span(images_.pixels)
          .subspan(static_cast<size_t>(index) * image_bytes_, image_bytes_);
}

void check_labels(
    const std::vector<uint8_t>& labels,
    size_t num_classes,
    const std::string& where) {
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] >= num_classes) {
      throw DataError(
          fmt::format(
              "{}: label {} of image {} is out of range: 0 to {}",
              where,
              labels[i],
              i,
              num_classes - 1));
    }
  }
}

}  // namespace lockstep::data
