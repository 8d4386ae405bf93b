#include "lockstep/data/idx.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "lockstep/data/array_dataset.h"
#include "lockstep/data/byte_stream.h"

namespace lockstep::data {
namespace {

constexpr uint32_t kImages = 0x00000803;  // bytes, three dimensions
constexpr uint32_t kLabels = 0x00000801;
constexpr uint32_t kMaxSide = 4096;
constexpr uint64_t kMaxBytes = uint64_t{1} << 32;

uint32_t read_u32(ByteStream& stream) {
  std::array<uint8_t, 4> b{};
  stream.read(b);
  return uint32_t{b[0]} << 24 | uint32_t{b[1]} << 16 | uint32_t{b[2]} << 8 |
         uint32_t{b[3]};
}

void expect_magic(ByteStream& stream, uint32_t expected, const char* what) {
  const uint32_t magic = read_u32(stream);
  if (magic != expected) {
    throw DataError(
        fmt::format(
            "{}: not an idx file of {}: magic number {:#010x}, expected "
            "{:#010x}",
            stream.path(),
            what,
            magic,
            expected));
  }
}

// With or without .gz, '-' or '.' before idx, as people store them.
std::string find(const std::string& folder, const std::string& stem, int rank) {
  for (const char* separator : {"-", "."}) {
    for (const char* ending : {"", ".gz"}) {
      const std::string path = fmt::format(
          "{}/{}{}idx{}-ubyte{}", folder, stem, separator, rank, ending);
      std::error_code ignored;
      if (std::filesystem::exists(path, ignored)) {
        return path;
      }
    }
  }
  return {};
}

ImageArray read_images(const std::string& path, int64_t limit) {
  ByteStream stream(path);
  expect_magic(stream, kImages, "images");
  const uint32_t count = read_u32(stream);
  const uint32_t height = read_u32(stream);
  const uint32_t width = read_u32(stream);
  const uint64_t bytes = uint64_t{height} * width;
  if (count == 0 || bytes == 0 || height > kMaxSide || width > kMaxSide ||
      count > kMaxBytes / bytes) {
    throw DataError(
        fmt::format(
            "{}: impossible sizes in the header: {} images of {} x {}",
            path,
            count,
            height,
            width));
  }
  ImageArray images;
  images.height = static_cast<int>(height);
  images.width = static_cast<int>(width);
  images.channels = 1;
  const uint64_t kept =
      limit > 0 ? std::min<uint64_t>(count, static_cast<uint64_t>(limit))
                : count;
  images.labels.resize(kept);
  // Grown as the bytes come, so a header that lies costs no memory.
  constexpr uint64_t kStep = uint64_t{64} << 20;
  for (uint64_t at = 0; at < kept * bytes; at += kStep) {
    const uint64_t more = std::min(kStep, kept * bytes - at);
    images.pixels.resize(at + more);
    stream.read(std::span(images.pixels).subspan(at, more));
  }
  if (kept == count) {
    stream.expect_end();
  }
  return images;
}

std::vector<uint8_t>
read_labels(const std::string& path, size_t kept, bool all) {
  ByteStream stream(path);
  expect_magic(stream, kLabels, "labels");
  const uint32_t count = read_u32(stream);
  if (count < kept || (all && count != kept)) {
    throw DataError(
        fmt::format("{}: {} labels for {} images", path, count, kept));
  }
  std::vector<uint8_t> labels(kept);
  stream.read(labels);
  if (all) {
    stream.expect_end();
  }
  return labels;
}

}  // namespace

std::unique_ptr<Dataset> open_idx(
    const std::vector<std::string>& folders,
    bool train,
    int64_t limit,
    std::vector<std::string> classes) {
  const std::string prefix = train ? "train" : "t10k";
  for (const std::string& folder : folders) {
    const std::string images_path = find(folder, prefix + "-images", 3);
    if (images_path.empty()) {
      continue;
    }
    const std::string labels_path = find(folder, prefix + "-labels", 1);
    if (labels_path.empty()) {
      throw DataError(
          fmt::format(
              "{} has no labels beside it: {}-labels-idx1-ubyte[.gz] is "
              "missing",
              images_path,
              prefix));
    }
    ImageArray images = read_images(images_path, limit);
    images.labels = read_labels(labels_path, images.labels.size(), limit == 0);
    check_labels(images.labels, classes.size(), labels_path);
    images.classes = std::move(classes);
    return std::make_unique<ArrayDataset>(std::move(images));
  }
  return nullptr;
}

}  // namespace lockstep::data
