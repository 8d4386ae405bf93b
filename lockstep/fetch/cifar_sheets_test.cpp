#include "lockstep/fetch/cifar_sheets.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

namespace lockstep::fetch {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

void write_sheet(const fs::path& path, uint32_t width, uint32_t height) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = width;
  image.height = height;
  image.format = PNG_FORMAT_RGB;
  std::vector<uint8_t> pixels(size_t{3} * width * height, 7);
  for (size_t i = 0; i < 12; ++i) {
    pixels[i] = static_cast<uint8_t>(i + 1);  // the first four pixels
  }
  pixels.back() = 99;
  ASSERT_NE(
      png_image_write_to_file(
          &image, path.c_str(), 0, pixels.data(), 0, nullptr),
      0);
}

void write_labels(const fs::path& path, size_t count) {
  std::ofstream file(path);
  file << "[";
  for (size_t i = 0; i < count; ++i) {
    file << (i == 0 ? "" : ",") << i % 10;
  }
  file << "]";
}

class CifarSheets : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lockstep-sheets-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
    write_sheet(folder_ / "test_batch.png", 1024, 10'000);
    for (int i = 1; i <= 5; ++i) {
      fs::create_symlink(
          "test_batch.png", folder_ / fmt::format("data_batch_{}.png", i));
    }
    write_labels(folder_ / "train_lables.json", 50'000);
    write_labels(folder_ / "test_lables.json", 10'000);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string failure() {
    const auto done = convert_cifar_sheets(folder_, folder_);
    return done ? "no error" : done.error().to_string();
  }

  fs::path folder_;
};

TEST_F(CifarSheets, WritesTheOfficialLayout) {
  ASSERT_EQ(failure(), "no error");
  const auto path = folder_ / "data_batch_2.bin";
  ASSERT_EQ(fs::file_size(path), 30'730'000u);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(bytes[0], 0);
  EXPECT_EQ(bytes.substr(1, 4), "\x01\x04\x07\x0a");         // red
  EXPECT_EQ(bytes.substr(1 + 1024, 4), "\x02\x05\x08\x0b");  // green
  EXPECT_EQ(bytes.substr(1 + 2048, 4), "\x03\x06\x09\x0c");  // blue
  EXPECT_EQ(bytes[3073], 1);  // label of the second image
  EXPECT_EQ(bytes.back(), 99);
}

TEST_F(CifarSheets, FaultsNameTheFile) {
  write_labels(folder_ / "test_lables.json", 9'999);
  EXPECT_THAT(
      failure(), HasSubstr("test_lables.json: not a list of 10000 labels"));
  std::ofstream(folder_ / "test_lables.json") << "[";
  EXPECT_THAT(failure(), HasSubstr("test_lables.json: not a list"));
  write_labels(folder_ / "test_lables.json", 10'000);

  fs::remove(folder_ / "data_batch_1.png");
  EXPECT_THAT(failure(), HasSubstr("data_batch_1.png"));
  write_sheet(folder_ / "data_batch_1.png", 32, 32);
  EXPECT_THAT(failure(), HasSubstr("32 x 32 pixels instead of 1024 x 10000"));
  fs::remove(folder_ / "data_batch_1.png");
  fs::copy_file(folder_ / "test_batch.png", folder_ / "data_batch_1.png");
  fs::resize_file(
      folder_ / "data_batch_1.png",
      fs::file_size(folder_ / "test_batch.png") / 2);
  EXPECT_THAT(failure(), HasSubstr("data_batch_1.png"));
}

}  // namespace
}  // namespace lockstep::fetch
