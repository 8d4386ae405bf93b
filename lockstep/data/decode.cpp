#include "lockstep/data/decode.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace lockstep::data {

void decode_image(
    std::span<const uint8_t> file,
    const std::string& name,
    RawImage& image) {
  constexpr std::array<uint8_t, 8> kPng = {
      0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  constexpr std::array<uint8_t, 2> kJpeg = {0xff, 0xd8};
  auto starts_with = [&](std::span<const uint8_t> magic) {
    return file.size() >= magic.size() &&
           std::equal(magic.begin(), magic.end(), file.begin());
  };
  if (starts_with(kPng)) {
    decode_png(file, name, image);
  } else if (starts_with(kJpeg)) {
    decode_jpeg(file, name, image);
  } else if (file.empty()) {
    throw DataError(fmt::format("{}: empty file", name));
  } else {
    throw DataError(fmt::format("{}: neither a PNG nor a JPEG image", name));
  }
}

}  // namespace lockstep::data
