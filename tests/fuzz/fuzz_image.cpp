// Files of images from anywhere: PNG, JPEG, and pickled batches.

#include <zlib.h>

#include <cstring>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/decode.h"
#include "lockstep/data/pickle.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

constexpr size_t kPngStart = 8;
constexpr size_t kChunkFrame = 12;  // length, name, checksum

// A changed chunk fails its checksum; with the right one it goes deeper.
std::string with_checksums(std::string_view input) {
  std::string png(input);
  auto* bytes = reinterpret_cast<unsigned char*>(png.data());
  for (size_t at = kPngStart; at + kChunkFrame <= png.size();) {
    size_t size = size_t{bytes[at]} << 24 | size_t{bytes[at + 1]} << 16 |
                  size_t{bytes[at + 2]} << 8 | size_t{bytes[at + 3]};
    if (size > png.size() - at - kChunkFrame) {
      break;
    }
    uint32_t sum = static_cast<uint32_t>(
        ::crc32(0, bytes + at + 4, static_cast<uInt>(size + 4)));
    for (size_t i = 0; i < 4; ++i) {
      bytes[at + 8 + size + i] =
          static_cast<unsigned char>(sum >> (24 - 8 * i));
    }
    at += kChunkFrame + size;
  }
  return png;
}

void decode(std::span<const uint8_t> bytes) {
  try {
    data::RawImage image;
    data::decode_image(bytes, "fuzz", image);
    fuzz::expect(image.height > 0 && image.width > 0, "an image has a size");
  } catch (const data::DataError& error) {
    fuzz::expect(
        std::string_view(error.what()).find("fuzz") != std::string_view::npos,
        "the error names the file");
  }
}

void run(std::string_view input) {
  std::span<const uint8_t> bytes(
      reinterpret_cast<const uint8_t*>(input.data()), input.size());
  decode(bytes);
  if (input.starts_with("\x89PNG")) {
    std::string fixed = with_checksums(input);
    decode({reinterpret_cast<const uint8_t*>(fixed.data()), fixed.size()});
  }
  try {
    data::PickledBatch batch = data::read_pickled_batch(bytes, "fuzz");
    unsigned sum = 0;
    for (uint8_t byte : batch.data) {
      sum += byte;
    }
    fuzz::expect(
        batch.data.size() == static_cast<size_t>(batch.rows) *
                                 static_cast<size_t>(batch.columns),
        "the array has its size");
    fuzz::expect(sum < 1U << 30, "small files");
  } catch (const data::DataError& error) {
    fuzz::expect(
        std::string_view(error.what()).find("fuzz") != std::string_view::npos,
        "the error names the file");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "image",
       .run = run,
       .dictionary =
           {"\x89PNG\r\n\x1a\n",
            "IHDR",
            "IDAT",
            "IEND",
            "PLTE",
            "tRNS",
            "gAMA",
            "iCCP",
            "eXIf",
            "acTL",
            "\xff\xd8\xff\xe0",
            "\xff\xdb",
            "\xff\xc0",
            "\xff\xc2",
            "\xff\xc4",
            "\xff\xda",
            "\xff\xd9",
            "JFIF",
            "Exif",
            "Adobe",
            "cnumpy.core.multiarray\n_reconstruct\n",
            "cnumpy\nndarray\n",
            "cnumpy\ndtype\n",
            "c_codecs\nencode\n",
            "X\x06latin1",
            "\x8c\x13numpy._core.numeric\x94\x8c\x0b_frombuffer\x94\x93",
            "\x8c\x05numpy\x94\x8c\x05"
            "dtype\x94\x93",
            "\x80\x02",
            "\x80\x05\x95",
            "U\x04"
            "data",
            "U\x06labels",
            "K\x01",
            "M\x10\x27",
            "]q",
            "(",
            "e",
            "u.",
            "tb"},
       .max_size = 8192});
}
