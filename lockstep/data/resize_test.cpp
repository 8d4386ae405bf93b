#include "lockstep/data/resize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/data/random.h"
#include "lockstep/data/resize_weights.h"
#include "lockstep/data/test_files.h"

// The numbers themselves are compared with PyTorch in tests/test_resize.py.

namespace lockstep::data {
namespace {

RawImage random_image(int height, int width, int channels) {
  RawImage image;
  image.height = height;
  image.width = width;
  image.channels = channels;
  image.storage.resize(static_cast<size_t>(height * width * channels));
  for (size_t i = 0; i < image.storage.size(); ++i) {
    image.storage[i] = static_cast<uint8_t>(stream_value(1, i));
  }
  image.pixels = image.storage;
  return image;
}

// The definition, in doubles, with no order of passes.
double direct(
    const RawImage& image,
    const Axis& rows,
    const Axis& columns,
    int y,
    int x,
    int c) {
  double sum = 0;
  for (int i = 0; i < rows.taps; ++i) {
    for (int j = 0; j < columns.taps; ++j) {
      const auto row =
          static_cast<size_t>(rows.first[static_cast<size_t>(y)] + i);
      const auto column =
          static_cast<size_t>(columns.first[static_cast<size_t>(x)] + j);
      sum += static_cast<double>(
                 rows.weights[static_cast<size_t>(y * rows.taps + i)]) *
             columns.weights[static_cast<size_t>(x * columns.taps + j)] *
             image.pixels
                 [(row * static_cast<size_t>(image.width) + column) *
                      static_cast<size_t>(image.channels) +
                  static_cast<size_t>(c)];
    }
  }
  return sum;
}

struct Case {
  int in_height, in_width, out_height, out_width, channels;
};

TEST(ResizeTest, AllPathsFollowTheDefinition) {
  for (const Case& size :
       {Case{32, 32, 64, 64, 3},
        {28, 28, 64, 64, 1},
        {32, 32, 32, 32, 3},
        {33, 17, 8, 50, 3},
        {9, 40, 31, 7, 1},
        {64, 64, 64, 20, 3},
        {20, 64, 64, 64, 1},
        {1, 1, 5, 4, 3},
        {7, 5, 1, 1, 3}}) {
    const RawImage image =
        random_image(size.in_height, size.in_width, size.channels);
    for (Resize kind : {Resize::kBilinear, Resize::kBicubic}) {
      const Axis rows = make_axis(size.in_height, size.out_height, kind);
      const Axis columns = make_axis(size.in_width, size.out_width, kind);
      for (int variant = 0; variant < 4; ++variant) {
        const bool last = variant % 2 == 0;
        const bool flip = variant >= 2;
        ResizeOptions options;
        options.height = size.out_height;
        options.width = size.out_width;
        options.resize = kind;
        options.channels_last = last;
        options.mean = {.1f, .2f, .3f};
        options.stddev = {.5f, .25f, 1.f};
        Resizer resizer(options);
        const int count = size.out_height * size.out_width * size.channels;
        // A float before and behind that must stay.
        std::vector<float> output(static_cast<size_t>(count) + 2, 77.f);
        resizer.run(image, flip, output.data() + 1);
        EXPECT_EQ(output.front(), 77.f);
        EXPECT_EQ(output.back(), 77.f);
        for (int y = 0; y < size.out_height; ++y) {
          for (int x = 0; x < size.out_width; ++x) {
            for (int c = 0; c < size.channels; ++c) {
              const int from = flip ? size.out_width - 1 - x : x;
              const auto k = static_cast<size_t>(c);
              const double wanted =
                  (direct(image, rows, columns, y, from, c) / 255 -
                   options.mean[k]) /
                  options.stddev[k];
              const int at =
                  last ? (y * size.out_width + x) * size.channels + c
                       : (c * size.out_height + y) * size.out_width + x;
              ASSERT_NEAR(output[static_cast<size_t>(at + 1)], wanted, 1e-5)
                  << y << " " << x << " " << c << " variant " << variant;
            }
          }
        }
      }
    }
  }
}

TEST(ResizeTest, WeightsSumToOneAndStayInside) {
  for (int input : {1, 2, 3, 28, 32, 100, 1001}) {
    for (int output : {1, 2, 7, 64, 224}) {
      for (Resize kind : {Resize::kBilinear, Resize::kBicubic}) {
        const Axis axis = make_axis(input, output, kind);
        for (int i = 0; i < output; ++i) {
          const int first = axis.first[static_cast<size_t>(i)];
          ASSERT_GE(first, 0);
          ASSERT_LE(first + axis.taps, input);
          double sum = 0;
          for (int k = 0; k < axis.taps; ++k) {
            sum += axis.weights[static_cast<size_t>(i * axis.taps + k)];
          }
          ASSERT_NEAR(sum, 1, 1e-6);
        }
      }
    }
  }
}

// More sizes than the cache of weights holds, and back again.
TEST(ResizeTest, ManySizesThroughOneResizer) {
  ResizeOptions options;
  options.height = options.width = 9;
  Resizer resizer(options);
  std::vector<float> first(9 * 9 * 3);
  std::vector<float> again(9 * 9 * 3);
  resizer.run(random_image(20, 20, 3), false, first.data());
  for (int side = 1; side < 150; ++side) {
    resizer.run(random_image(side, side + 3, 1), false, again.data());
  }
  resizer.run(random_image(20, 20, 3), false, again.data());
  EXPECT_EQ(first, again);
}

TEST(ResizeTest, RefusesNonsense) {
  ResizeOptions options;
  options.stddev[1] = 0;
  EXPECT_THAT(
      testing::data_error([&] { Resizer resizer(options); }),
      ::testing::HasSubstr("standard deviation 0"));
  options = {};
  options.width = 0;
  EXPECT_THROW(Resizer resizer(options), DataError);
  RawImage image = random_image(4, 4, 3);
  image.height = 5;
  std::vector<float> output(64 * 64 * 3);
  Resizer resizer(ResizeOptions{});
  EXPECT_THROW(resizer.run(image, false, output.data()), DataError);
}

}  // namespace
}  // namespace lockstep::data
