#pragma once

// PNG files and grids of images, 8 bits a channel, 1 or 3 channels.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/result.h"

namespace lockstep::record {

struct Image {
  int height = 0;
  int width = 0;
  int channels = 3;             // 1 or 3
  std::vector<uint8_t> pixels;  // rows, interleaved channels
};

Result<std::string> encode_png(const Image& image);

// `per_row` images a row, `padding` black pixels around each (as torchvision's
// make_grid). All of one size.
Image make_grid(
    const std::vector<Image>& images,
    int per_row = 8,
    int padding = 2);

}  // namespace lockstep::record
