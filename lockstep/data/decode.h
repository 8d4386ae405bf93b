#pragma once

// PNG and JPEG to 8-bit RGB. The kind is told by the content. 16-bit samples
// are rounded to 8, palettes and gray become RGB, transparency is laid over
// white, CMYK is converted without a colour profile; gamma and orientation
// marks are ignored. Thread-safe. Damaged, truncated or huge (over 100
// megapixels) images throw DataError naming the file; nothing crashes.

#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

inline constexpr int64_t kMaxPixels = 100'000'000;

// `name` is for messages. The result lies in image.storage.
void decode_image(
    std::span<const uint8_t> file,
    const std::string& name,
    RawImage& image);
// As its header says, also of an image that is too large to be decoded.
Dataset::Size image_size(
    std::span<const uint8_t> file,
    const std::string& name);

// The same of one kind.
void decode_png(
    std::span<const uint8_t> file,
    const std::string& name,
    RawImage& image);
void decode_jpeg(
    std::span<const uint8_t> file,
    const std::string& name,
    RawImage& image);

Dataset::Size png_size(std::span<const uint8_t> file, const std::string& name);
Dataset::Size jpeg_size(std::span<const uint8_t> file, const std::string& name);

}  // namespace lockstep::data
