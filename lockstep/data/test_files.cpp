#include "lockstep/data/test_files.h"

#include <png.h>
#include <zlib.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <jpeglib.h>

namespace lockstep::data::testing {
namespace {

void put_u32(Bytes& bytes, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) {
    bytes.push_back(static_cast<uint8_t>(value >> shift));
  }
}

void put(Bytes& bytes, const std::string& text) {
  bytes.insert(bytes.end(), text.begin(), text.end());
}

void put_little(Bytes& bytes, uint32_t value, int count) {
  for (int i = 0; i < count; ++i) {
    bytes.push_back(static_cast<uint8_t>(value >> (8 * i)));
  }
}

}  // namespace

Folder::Folder() {
  std::string pattern =
      std::filesystem::temp_directory_path().string() + "/data-XXXXXX";
  path_ = ::mkdtemp(pattern.data());
}

Folder::~Folder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string Folder::write(const std::string& name, const Bytes& bytes) const {
  return write(name, std::string(bytes.begin(), bytes.end()));
}

std::string Folder::write(const std::string& name, const std::string& text)
    const {
  const std::filesystem::path path = at(name);
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY);
  Bytes result(deflateBound(&stream, bytes.size()) + 64);
  stream.next_in = const_cast<uint8_t*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = result.data();
  stream.avail_out = static_cast<uInt>(result.size());
  deflate(&stream, Z_FINISH);
  result.resize(stream.total_out);
  deflateEnd(&stream);
  return result;
}

Bytes idx_images(uint32_t count, uint32_t height, uint32_t width) {
  Bytes bytes;
  put_u32(bytes, 0x803);
  put_u32(bytes, count);
  put_u32(bytes, height);
  put_u32(bytes, width);
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t p = 0; p < height * width; ++p) {
      bytes.push_back(static_cast<uint8_t>(i * 7 + p));
    }
  }
  return bytes;
}

Bytes idx_labels(uint32_t count) {
  Bytes bytes;
  put_u32(bytes, 0x801);
  put_u32(bytes, count);
  for (uint32_t i = 0; i < count; ++i) {
    bytes.push_back(static_cast<uint8_t>(i % 10));
  }
  return bytes;
}

uint8_t cifar_pixel(int image, int channel, int position) {
  return static_cast<uint8_t>(image * 31 + channel * 101 + position);
}

Bytes cifar_binary(int count, int first) {
  Bytes bytes;
  for (int i = first; i < first + count; ++i) {
    bytes.push_back(static_cast<uint8_t>(i % 10));
    for (int c = 0; c < 3; ++c) {
      for (int p = 0; p < 1024; ++p) {
        bytes.push_back(cifar_pixel(i, c, p));
      }
    }
  }
  return bytes;
}

Bytes cifar_pickle(int count, int first) {
  using std::string_literals::operator""s;
  Bytes bytes;
  put(bytes,
      "\x80\x02}q\x01(U\x0b"s + "batch_labelq\x02U\x15"s +
          "training batch 1 of 5q\x03U\x06labelsq\x04]q\x05("s);
  for (int i = first; i < first + count; ++i) {
    put(bytes, "K"s);
    bytes.push_back(static_cast<uint8_t>(i % 10));
  }
  put(bytes,
      "eU\x04"s + "dataq\x06"s +
          "cnumpy.core.multiarray\n_reconstruct\nq\x07"s +
          "cnumpy\nndarray\nq\x08K\x00\x85q\tU\x01"s +
          "bq\n\x87q\x0bRq\x0c(K\x01M"s);
  put_little(bytes, static_cast<uint32_t>(count), 2);
  put(bytes,
      "M\x00\x0c\x86q\rcnumpy\ndtype\nq\x0eU\x02u1q\x0fK\x00K\x01\x87q\x10Rq\x11"s +
          "(K\x03U\x01|q\x12NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x13"s +
          "b\x89T"s);
  put_little(bytes, static_cast<uint32_t>(count) * 3072, 4);
  for (int i = first; i < first + count; ++i) {
    for (int c = 0; c < 3; ++c) {
      for (int p = 0; p < 1024; ++p) {
        bytes.push_back(cifar_pixel(i, c, p));
      }
    }
  }
  put(bytes,
      "q\x14tbU\x09"s + "filenamesq\x15]q\x16(U\x05"s + "a.pngq\x17"s + "eu."s);
  return bytes;
}

Bytes png(int height, int width, const Bytes& rgb) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  Bytes bytes(size);
  png_image_write_to_memory(
      &image, bytes.data(), &size, 0, rgb.data(), 0, nullptr);
  bytes.resize(size);
  return bytes;
}

Bytes jpeg(int height, int width, const Bytes& rgb, int quality) {
  jpeg_compress_struct state{};
  jpeg_error_mgr errors{};
  state.err = jpeg_std_error(&errors);
  jpeg_create_compress(&state);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&state, &memory, &size);
  state.image_width = static_cast<JDIMENSION>(width);
  state.image_height = static_cast<JDIMENSION>(height);
  state.input_components = 3;
  state.in_color_space = JCS_RGB;
  jpeg_set_defaults(&state);
  jpeg_set_quality(&state, quality, TRUE);
  jpeg_start_compress(&state, TRUE);
  while (state.next_scanline < state.image_height) {
    auto* row = const_cast<uint8_t*>(
        rgb.data() + static_cast<size_t>(state.next_scanline) *
                         static_cast<size_t>(width) * 3);
    jpeg_write_scanlines(&state, &row, 1);
  }
  jpeg_finish_compress(&state);
  Bytes bytes(memory, memory + size);
  jpeg_destroy_compress(&state);
  std::free(memory);
  return bytes;
}

}  // namespace lockstep::data::testing
