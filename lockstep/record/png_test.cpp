#include "lockstep/record/png.h"

#include <gtest/gtest.h>
#include <png.h>

#include <cstring>
#include <numeric>

namespace lockstep::record {
namespace {

Image decode(const std::string& text, int channels) {
  png_image in;
  std::memset(&in, 0, sizeof(in));
  in.version = PNG_IMAGE_VERSION;
  Image image;
  if (png_image_begin_read_from_memory(&in, text.data(), text.size()) == 0) {
    return image;
  }
  in.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  image.height = static_cast<int>(in.height);
  image.width = static_cast<int>(in.width);
  image.channels = channels;
  image.pixels.resize(PNG_IMAGE_SIZE(in));
  if (png_image_finish_read(&in, nullptr, image.pixels.data(), 0, nullptr) ==
      0) {
    image.pixels.clear();
  }
  return image;
}

Image gradient(int height, int width, int channels, int start = 0) {
  Image image{height, width, channels, {}};
  image.pixels.resize(static_cast<size_t>(height * width * channels));
  std::iota(
      image.pixels.begin(), image.pixels.end(), static_cast<uint8_t>(start));
  return image;
}

TEST(Png, KeepsEveryPixel) {
  for (const int channels : {1, 3}) {
    const Image image = gradient(17, 23, channels);
    const auto text = encode_png(image);
    ASSERT_TRUE(text) << text.error().to_string();
    const Image back = decode(*text, channels);
    EXPECT_EQ(back.height, 17);
    EXPECT_EQ(back.width, 23);
    EXPECT_EQ(back.pixels, image.pixels);
  }
}

TEST(Png, RefusesWhatIsNoImage) {
  for (const Image& image :
       {Image{},
        Image{2, 2, 2, std::vector<uint8_t>(8)},
        Image{2, 2, 3, std::vector<uint8_t>(11)},
        Image{-1, 2, 3, {}},
        Image{1 << 30, 1 << 30, 3, {}}}) {
    const auto text = encode_png(image);
    ASSERT_FALSE(text);
    EXPECT_EQ(text.error().code(), ErrorCode::kInvalidInput);
  }
}

TEST(Grid, PlacesImagesAsMakeGridDoes) {
  std::vector<Image> images;
  for (int i = 0; i < 5; ++i) {
    images.push_back(gradient(4, 3, 3, i * 40));
  }
  const Image grid = make_grid(images, 2, 2);
  EXPECT_EQ(grid.height, 3 * (4 + 2) + 2);
  EXPECT_EQ(grid.width, 2 * (3 + 2) + 2);
  const auto pixel = [&grid](int y, int x, int channel) {
    return grid.pixels[static_cast<size_t>((y * grid.width + x) * 3 + channel)];
  };
  EXPECT_EQ(pixel(0, 0, 0), 0);
  EXPECT_EQ(pixel(2, 2, 0), 0);
  EXPECT_EQ(pixel(2, 2, 1), 1);
  EXPECT_EQ(pixel(2, 7, 0), 40);         // second image
  EXPECT_EQ(pixel(2, 6, 0), 0);          // padding between them
  EXPECT_EQ(pixel(8, 2, 0), 80);         // third: next row
  EXPECT_EQ(pixel(17, 4, 2), 160 + 35);  // last pixel of the fifth
  EXPECT_EQ(pixel(14, 7, 0), 0);         // no sixth
}

TEST(Grid, OfFewImagesIsNarrow) {
  const Image grid = make_grid({gradient(4, 4, 1)}, 8, 2);
  EXPECT_EQ(grid.width, 8);
  EXPECT_EQ(grid.height, 8);
  EXPECT_TRUE(make_grid({}).pixels.empty());
}

}  // namespace
}  // namespace lockstep::record
