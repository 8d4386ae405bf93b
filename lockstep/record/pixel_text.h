#pragma once

// Words in pictures of pixels: a font of 3 x 5 dots, drawn twice as large.
// Letters are capitals; what the font lacks is a question mark. What lies
// outside the image is not drawn. Private to record/.

#include <array>
#include <cstdint>
#include <string_view>

#include "lockstep/record/png.h"

namespace lockstep::record {

using Colour = std::array<uint8_t, 3>;

inline constexpr int kTextHeight = 10;
int text_width(std::string_view text);

// `x`, `y`: the upper left corner.
void draw_text(
    Image& image,
    int x,
    int y,
    std::string_view text,
    const Colour& colour);
// Reads upwards; `y` is where it begins, at the bottom.
void draw_text_up(
    Image& image,
    int x,
    int y,
    std::string_view text,
    const Colour& colour);
void fill_rectangle(
    Image& image,
    int x,
    int y,
    int width,
    int height,
    const Colour& colour);

}  // namespace lockstep::record
