#include "lockstep/data/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace lockstep::data {
namespace {

enum class Kind { kPng, kJpeg };

// By the content; throws for what is neither.
Kind kind_of(std::span<const uint8_t> file, const std::string& name) {
  constexpr std::array<uint8_t, 8> kPng = {
      0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  constexpr std::array<uint8_t, 2> kJpeg = {0xff, 0xd8};
  auto starts_with = [&](std::span<const uint8_t> magic) {
    return file.size() >= magic.size() &&
           std::equal(magic.begin(), magic.end(), file.begin());
  };
  if (starts_with(kPng)) {
    return Kind::kPng;
  }
  if (starts_with(kJpeg)) {
    return Kind::kJpeg;
  }
  throw DataError(
      file.empty() ? fmt::format("{}: empty file", name)
                   : fmt::format("{}: neither a PNG nor a JPEG image", name));
}

}  // namespace

void decode_image(
    std::span<const uint8_t> file,
    const std::string& name,
    RawImage& image) {
  if (kind_of(file, name) == Kind::kPng) {
    decode_png(file, name, image);
  } else {
    decode_jpeg(file, name, image);
  }
}

Dataset::Size image_size(
    std::span<const uint8_t> file,
    const std::string& name) {
  return kind_of(file, name) == Kind::kPng ? png_size(file, name)
                                           : jpeg_size(file, name);
}

}  // namespace lockstep::data
