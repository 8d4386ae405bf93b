#include <fmt/format.h>
#include <png.h>

#include <array>
#include <csetjmp>
#include <cstring>
#include <vector>

#include "lockstep/data/decode.h"

namespace lockstep::data {
namespace {

// Everything that lives across a longjmp: it is owned by the caller of the
// functions that setjmp, which hold no object with a destructor.
struct PngState {
  png_structp png = nullptr;
  png_infop info = nullptr;
  std::span<const uint8_t> file;
  size_t at = 0;
  std::array<char, 200> message{};
  png_uint_32 width = 0;
  png_uint_32 height = 0;
  size_t row_bytes = 0;
  int passes = 1;
  ~PngState() { png_destroy_read_struct(&png, &info, nullptr); }
};

void on_error(png_structp png, png_const_charp text) {
  auto* state = static_cast<PngState*>(png_get_error_ptr(png));
  std::strncpy(state->message.data(), text, state->message.size() - 1);
  png_longjmp(png, 1);
}

void on_warning(png_structp, png_const_charp) {}

void on_read(png_structp png, png_bytep target, size_t count) {
  auto* state = static_cast<PngState*>(png_get_io_ptr(png));
  if (count > state->file.size() - state->at) {
    png_error(png, "truncated");
  }
  std::memcpy(target, state->file.data() + state->at, count);
  state->at += count;
}

// Reads the header and asks for 8-bit RGBA rows. False: state.message.
bool open_png(PngState& state) {
  if (setjmp(png_jmpbuf(state.png)) != 0) {
    return false;
  }
  png_set_read_fn(state.png, &state, on_read);
  png_set_user_limits(state.png, 1'000'000, 1'000'000);
  png_read_info(state.png, state.info);
  state.width = png_get_image_width(state.png, state.info);
  state.height = png_get_image_height(state.png, state.info);
  if (static_cast<int64_t>(state.width) * state.height > kMaxPixels) {
    return true;  // refused by the caller, which can say why
  }
  png_set_expand(state.png);
  png_set_scale_16(state.png);
  png_set_gray_to_rgb(state.png);
  // Transparent pixels keep their alpha; opaque images get none.
  state.passes = png_set_interlace_handling(state.png);
  png_read_update_info(state.png, state.info);
  state.row_bytes = png_get_rowbytes(state.png, state.info);
  return true;
}

bool read_rows(PngState& state, uint8_t* pixels) {
  if (setjmp(png_jmpbuf(state.png)) != 0) {
    return false;
  }
  for (int pass = 0; pass < state.passes; ++pass) {
    for (png_uint_32 y = 0; y < state.height; ++y) {
      png_read_row(state.png, pixels + y * state.row_bytes, nullptr);
    }
  }
  png_read_end(state.png, nullptr);
  return true;
}

void lay_over_white(std::span<const uint8_t> rgba, uint8_t* rgb) {
  for (size_t i = 0; i + 3 < rgba.size(); i += 4, rgb += 3) {
    const unsigned alpha = rgba[i + 3];
    for (size_t c = 0; c < 3; ++c) {
      rgb[c] = static_cast<uint8_t>(
          (rgba[i + c] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
  }
}

[[noreturn]] void fail(const PngState& state, const std::string& name) {
  throw DataError(fmt::format("{}: bad PNG: {}", name, state.message.data()));
}

// Throws when the header cannot be read.
void start(
    PngState& state,
    std::span<const uint8_t> file,
    const std::string& name) {
  state.file = file;
  state.png = png_create_read_struct(
      PNG_LIBPNG_VER_STRING, &state, on_error, on_warning);
  state.info =
      state.png != nullptr ? png_create_info_struct(state.png) : nullptr;
  if (state.info == nullptr) {
    throw DataError(fmt::format("{}: libpng cannot start", name));
  }
  if (!open_png(state)) {
    fail(state, name);
  }
}

}  // namespace

Dataset::Size png_size(std::span<const uint8_t> file, const std::string& name) {
  PngState state;
  start(state, file, name);
  return {static_cast<int>(state.height), static_cast<int>(state.width)};
}

void decode_png(
    std::span<const uint8_t> file,
    const std::string& name,
    RawImage& image) {
  PngState state;
  start(state, file, name);
  if (state.row_bytes == 0) {
    throw DataError(
        fmt::format(
            "{}: {} x {} pixels, more than the {} that are accepted",
            name,
            state.width,
            state.height,
            kMaxPixels));
  }
  const size_t count = static_cast<size_t>(state.width) * state.height;
  image.width = static_cast<int>(state.width);
  image.height = static_cast<int>(state.height);
  image.channels = 3;
  if (state.row_bytes == static_cast<size_t>(state.width) * 3) {
    image.storage.resize(count * 3);
    if (!read_rows(state, image.storage.data())) {
      fail(state, name);
    }
  } else {
    std::vector<uint8_t> rgba(count * 4);
    if (state.row_bytes != static_cast<size_t>(state.width) * 4) {
      throw DataError(fmt::format("{}: unknown PNG pixel layout", name));
    }
    if (!read_rows(state, rgba.data())) {
      fail(state, name);
    }
    image.storage.resize(count * 3);
    lay_over_white(rgba, image.storage.data());
  }
  image.pixels = image.storage;
}

}  // namespace lockstep::data
