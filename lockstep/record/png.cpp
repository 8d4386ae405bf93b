#include "lockstep/record/png.h"

#include <fmt/format.h>
#include <png.h>

#include <algorithm>
#include <cstring>

#include "lockstep/base/check.h"

namespace lockstep::record {

Result<std::string> encode_png(const Image& image) {
  const bool sized = image.height > 0 && image.width > 0 &&
                     image.height <= PNG_USER_HEIGHT_MAX &&
                     image.width <= PNG_USER_WIDTH_MAX;
  if (!sized || (image.channels != 1 && image.channels != 3)) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "an image of {} x {} pixels and {} channels cannot be a PNG "
            "(1 or 3 channels, at least one pixel)",
            image.width,
            image.height,
            image.channels));
  }
  const size_t expected = static_cast<size_t>(image.height) *
                          static_cast<size_t>(image.width) *
                          static_cast<size_t>(image.channels);
  if (image.pixels.size() != expected) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "an image of {} x {} x {} has {} bytes of pixels, {} are needed",
            image.height,
            image.width,
            image.channels,
            image.pixels.size(),
            expected));
  }
  png_image out;
  std::memset(&out, 0, sizeof(out));
  out.version = PNG_IMAGE_VERSION;
  out.width = static_cast<png_uint_32>(image.width);
  out.height = static_cast<png_uint_32>(image.height);
  out.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  // The upper bound saves a second encoding only to learn the size.
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(out);
  std::string text(size, '\0');
  if (png_image_write_to_memory(
          &out, text.data(), &size, 0, image.pixels.data(), 0, nullptr) == 0) {
    return Error(
        ErrorCode::kInternal, fmt::format("encoding a PNG: {}", out.message));
  }
  text.resize(size);
  return text;
}

Image make_grid(const std::vector<Image>& images, int per_row, int padding) {
  Image grid;
  if (images.empty()) {
    return grid;
  }
  LOCKSTEP_CHECK(per_row > 0 && padding >= 0);
  const Image& first = images.front();
  const int count = static_cast<int>(images.size());
  const int columns = std::min(per_row, count);
  const int rows = (count + columns - 1) / columns;
  grid.channels = first.channels;
  grid.height = rows * (first.height + padding) + padding;
  grid.width = columns * (first.width + padding) + padding;
  const auto channels = static_cast<size_t>(grid.channels);
  const size_t stride = static_cast<size_t>(grid.width) * channels;
  const size_t line = static_cast<size_t>(first.width) * channels;
  grid.pixels.assign(stride * static_cast<size_t>(grid.height), 0);
  for (int i = 0; i < count; ++i) {
    const Image& image = images[static_cast<size_t>(i)];
    LOCKSTEP_CHECK_EQ(image.height, first.height);
    LOCKSTEP_CHECK_EQ(image.width, first.width);
    LOCKSTEP_CHECK_EQ(image.channels, first.channels);
    LOCKSTEP_CHECK_EQ(
        image.pixels.size(), line * static_cast<size_t>(first.height));
    const int top = padding + i / columns * (first.height + padding);
    const int left = padding + i % columns * (first.width + padding);
    for (int y = 0; y < first.height; ++y) {
      std::copy_n(
          image.pixels.begin() +
              static_cast<std::ptrdiff_t>(static_cast<size_t>(y) * line),
          line,
          grid.pixels.begin() + static_cast<std::ptrdiff_t>(
                                    static_cast<size_t>(top + y) * stride +
                                    static_cast<size_t>(left) * channels));
    }
  }
  return grid;
}

}  // namespace lockstep::record
