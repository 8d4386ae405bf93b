#include <fmt/format.h>

#include <array>
#include <csetjmp>
#include <cstdio>
#include <vector>

#include <jpeglib.h>
// After jpeglib.h, whose types it needs.
#include <jerror.h>

#include "lockstep/data/decode.h"

namespace lockstep::data {
namespace {

// A progressive image may ask for any number of passes over all of it.
constexpr int kMaxScans = 200;

// Lives across a longjmp; owned by the caller of the functions that setjmp.
struct JpegState {
  jpeg_decompress_struct jpeg{};
  jpeg_error_mgr errors{};
  jpeg_progress_mgr progress{};
  std::jmp_buf escape{};
  std::array<char, JMSG_LENGTH_MAX> message{};
  bool created = false;
  ~JpegState() {
    if (created) {
      jpeg_destroy_decompress(&jpeg);
    }
  }
};

JpegState& state_of(j_common_ptr jpeg) {
  return *static_cast<JpegState*>(jpeg->client_data);
}

void on_error(j_common_ptr jpeg) {
  JpegState& state = state_of(jpeg);
  jpeg->err->format_message(jpeg, state.message.data());
  std::longjmp(state.escape, 1);
}

// libjpeg paints over what is missing and calls it a warning; a training set
// must not hold half-gray images, so those that mean lost pixels are errors.
void on_message(j_common_ptr jpeg, int level) {
  if (level >= 0) {
    return;
  }
  switch (jpeg->err->msg_code) {
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_ADOBE_XFORM:
    case JWRN_JFIF_MAJOR:
    case JWRN_TOO_MUCH_DATA:
      return;
    default:
      on_error(jpeg);
  }
}

void on_output(j_common_ptr) {}

void on_progress(j_common_ptr jpeg) {
  if (reinterpret_cast<j_decompress_ptr>(jpeg)->input_scan_number > kMaxScans) {
    std::snprintf(
        state_of(jpeg).message.data(),
        JMSG_LENGTH_MAX,
        "more than %d scans",
        kMaxScans);
    std::longjmp(state_of(jpeg).escape, 1);
  }
}

// False: state.message says why.
bool read_header(JpegState& state, std::span<const uint8_t> file) {
  if (setjmp(state.escape) != 0) {
    return false;
  }
  jpeg_create_decompress(&state.jpeg);
  state.created = true;
  state.jpeg.client_data = &state;
  state.jpeg.progress = &state.progress;
  jpeg_mem_src(
      &state.jpeg, file.data(), static_cast<unsigned long>(file.size()));
  jpeg_read_header(&state.jpeg, TRUE);
  return true;
}

bool read_pixels(JpegState& state, uint8_t* pixels, size_t row_bytes) {
  if (setjmp(state.escape) != 0) {
    return false;
  }
  jpeg_start_decompress(&state.jpeg);
  while (state.jpeg.output_scanline < state.jpeg.output_height) {
    JSAMPROW row = pixels + state.jpeg.output_scanline * row_bytes;
    jpeg_read_scanlines(&state.jpeg, &row, 1);
  }
  jpeg_finish_decompress(&state.jpeg);
  return true;
}

uint8_t product(unsigned a, unsigned b) {
  return static_cast<uint8_t>((a * b + 127) / 255);
}

// Adobe's programs store the four inks inverted.
void cmyk_to_rgb(std::span<const uint8_t> cmyk, bool inverted, uint8_t* rgb) {
  for (size_t i = 0; i + 3 < cmyk.size(); i += 4, rgb += 3) {
    const unsigned black = inverted ? cmyk[i + 3] : 255u - cmyk[i + 3];
    for (size_t c = 0; c < 3; ++c) {
      const unsigned ink = inverted ? cmyk[i + c] : 255u - cmyk[i + c];
      rgb[c] = product(ink, black);
    }
  }
}

[[noreturn]] void fail(const JpegState& state, const std::string& name) {
  throw DataError(fmt::format("{}: bad JPEG: {}", name, state.message.data()));
}

// Throws when the header cannot be read.
void start(
    JpegState& state,
    std::span<const uint8_t> file,
    const std::string& name) {
  state.jpeg.err = jpeg_std_error(&state.errors);
  state.jpeg.client_data = &state;
  state.errors.error_exit = on_error;
  state.errors.emit_message = on_message;
  state.errors.output_message = on_output;
  state.progress.progress_monitor = on_progress;
  if (!read_header(state, file)) {
    fail(state, name);
  }
}

}  // namespace

Dataset::Size jpeg_size(
    std::span<const uint8_t> file,
    const std::string& name) {
  JpegState state;
  start(state, file, name);
  return {
      static_cast<int>(state.jpeg.image_height),
      static_cast<int>(state.jpeg.image_width)};
}

void decode_jpeg(
    std::span<const uint8_t> file,
    const std::string& name,
    RawImage& image) {
  JpegState state;
  start(state, file, name);
  const size_t width = state.jpeg.image_width;
  const size_t height = state.jpeg.image_height;
  if (width * height > static_cast<size_t>(kMaxPixels)) {
    throw DataError(
        fmt::format(
            "{}: {} x {} pixels, more than the {} that are accepted",
            name,
            width,
            height,
            kMaxPixels));
  }
  const bool inks = state.jpeg.jpeg_color_space == JCS_CMYK ||
                    state.jpeg.jpeg_color_space == JCS_YCCK;
  state.jpeg.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  image.width = static_cast<int>(width);
  image.height = static_cast<int>(height);
  image.channels = 3;
  image.storage.resize(width * height * 3);
  if (inks) {
    std::vector<uint8_t> cmyk(width * height * 4);
    if (!read_pixels(state, cmyk.data(), width * 4)) {
      fail(state, name);
    }
    cmyk_to_rgb(cmyk, state.jpeg.saw_Adobe_marker != 0, image.storage.data());
  } else if (!read_pixels(state, image.storage.data(), width * 3)) {
    fail(state, name);
  }
  image.pixels = image.storage;
}

}  // namespace lockstep::data
