#include "lockstep/fetch/cifar_sheets.h"

#include <fmt/format.h>
#include <png.h>

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

namespace lockstep::fetch {
namespace {

constexpr size_t kImages = 10'000;  // a batch
constexpr size_t kPixels = 1024;

Error damaged(const os::Path& path, const std::string& what) {
  return Error(ErrorCode::kCorrupt, fmt::format("{}: {}", path.string(), what));
}

Result<std::vector<uint8_t>> read_labels(const os::Path& path, size_t count) {
  LOCKSTEP_ASSIGN(const std::string text, os::real_files().read(path));
  const auto list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array() || list.size() != count) {
    return damaged(path, fmt::format("not a list of {} labels", count));
  }
  std::vector<uint8_t> labels;
  for (const auto& label : list) {
    if (!label.is_number_unsigned() || label.get<uint64_t>() > 9) {
      return damaged(path, "a label is not a number from 0 to 9");
    }
    labels.push_back(label.get<uint8_t>());
  }
  return labels;
}

// Rows of interleaved pixels.
Result<std::vector<uint8_t>> read_sheet(const os::Path& path) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_file(&image, path.c_str()) == 0) {
    return damaged(path, image.message);
  }
  if (image.width != kPixels || image.height != kImages) {
    const std::string what = fmt::format(
        "{} x {} pixels instead of {} x {}",
        image.width,
        image.height,
        kPixels,
        kImages);
    png_image_free(&image);
    return damaged(path, what);
  }
  image.format = PNG_FORMAT_RGB;
  std::vector<uint8_t> pixels(PNG_IMAGE_SIZE(image));
  const int ok =
      png_image_finish_read(&image, nullptr, pixels.data(), 0, nullptr);
  const std::string message = image.message;
  png_image_free(&image);
  if (ok == 0) {
    return damaged(path, message);
  }
  return pixels;
}

Result<void> convert(
    const os::Path& sheet,
    std::span<const uint8_t> labels,
    const os::Path& to) {
  LOCKSTEP_ASSIGN(const auto pixels, read_sheet(sheet));
  std::string records;
  records.reserve(kImages * (1 + 3 * kPixels));
  for (size_t i = 0; i < kImages; ++i) {
    records += static_cast<char>(labels[i]);
    const uint8_t* row = pixels.data() + i * kPixels * 3;
    for (size_t channel = 0; channel < 3; ++channel) {
      for (size_t p = 0; p < kPixels; ++p) {
        records += static_cast<char>(row[p * 3 + channel]);
      }
    }
  }
  return os::real_files().write_atomic(to, records);
}

}  // namespace

Result<void> convert_cifar_sheets(const os::Path& from, const os::Path& to) {
  LOCKSTEP_ASSIGN(
      const auto train, read_labels(from / "train_lables.json", 5 * kImages));
  LOCKSTEP_ASSIGN(
      const auto test, read_labels(from / "test_lables.json", kImages));
  for (size_t i = 0; i < 5; ++i) {
    const std::string name = fmt::format("data_batch_{}", i + 1);
    LOCKSTEP_TRY(convert(
        from / (name + ".png"),
        std::span(train).subspan(i * kImages, kImages),
        to / (name + ".bin")));
  }
  return convert(from / "test_batch.png", test, to / "test_batch.bin");
}

}  // namespace lockstep::fetch
