#include "lockstep/data/tolerant.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/data/image_folder.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using testing::Bytes;
using testing::data_error;
using ::testing::ElementsAre;
using testing::Folder;
using ::testing::HasSubstr;
using testing::png;

// Ten images in two classes; those of `bad` are text, `tiny` ones are 2 x 2.
std::shared_ptr<const Dataset> make(
    const Folder& folder,
    const std::vector<int>& bad,
    const std::vector<int>& tiny = {}) {
  for (int i = 0; i < 10; ++i) {
    const std::string name =
        std::string(i < 5 ? "a/" : "b/") + std::to_string(i) + ".png";
    const int side = std::ranges::count(tiny, i) > 0 ? 2 : 8;
    const Bytes rgb(static_cast<size_t>(side * side * 3), uint8_t(i));
    if (std::ranges::count(bad, i) > 0) {
      folder.write(name, std::string("no image"));
    } else {
      folder.write(name, png(side, side, rgb));
    }
  }
  return open_image_folder(folder.path(), true, 0);
}

TEST(Tolerant, TakesTheNextGoodImageWithItsLabel) {
  const Folder folder;
  const auto data = tolerate(make(folder, {4}), {.share = .3, .min_height = 4});
  RawImage image;
  data->read(4, image);
  EXPECT_EQ(image.pixels[0], 5);
  EXPECT_EQ(data->label(4), 1);
  data->read(3, image);
  EXPECT_EQ(image.pixels[0], 3);
  EXPECT_EQ(data->label(3), 0);
  EXPECT_EQ(data->size(), 10);
}

TEST(Tolerant, TinyImagesCountAndTheLastWrapsAround) {
  const Folder folder;
  const auto data =
      tolerate(make(folder, {8}, {9}), {.share = .2, .min_width = 4});
  RawImage image;
  data->read(8, image);
  EXPECT_EQ(image.pixels[0], 0);
  EXPECT_EQ(data->label(8), 0);
}

TEST(Tolerant, TooManyAreAnErrorThatNamesOne) {
  const Folder folder;
  const auto data = tolerate(make(folder, {1, 2}, {7}), {.share = .2});
  RawImage image;
  data->read(1, image);
  data->read(7, image);  // small, but that is allowed here
  const auto strict =
      tolerate(make(folder, {1, 2}, {7}), {.share = .2, .min_height = 4});
  strict->read(1, image);
  const auto message = data_error([&] { strict->read(7, image); });
  EXPECT_THAT(message, HasSubstr("3 of 10"));
  EXPECT_THAT(message, HasSubstr("7.png"));
  EXPECT_THAT(message, HasSubstr("2 x 2"));
  EXPECT_THAT(message, HasSubstr("data.max_skipped"));
}

TEST(Tolerant, WhatOtherRanksFoundCounts) {
  const Folder folder;
  const auto data = tolerate(make(folder, {1, 2, 3}), {.share = .2});
  RawImage image;
  data->read(3, image);
  const std::vector<int64_t> theirs{2, 3};
  data->add_passed_over(theirs);
  EXPECT_THAT(data->passed_over(), ElementsAre(2, 3));
  data->read(2, image);
  EXPECT_EQ(image.pixels[0], 4);
  const std::vector<int64_t> more{1};
  const auto message = data_error([&] { data->add_passed_over(more); });
  EXPECT_THAT(message, HasSubstr("3 of 10"));
  EXPECT_THAT(message, HasSubstr("1.png"));
  EXPECT_THAT(message, HasSubstr("data.max_skipped"));
}

TEST(Tolerant, NoneGoodIsAnErrorWhateverTheShare) {
  const Folder folder;
  const auto data =
      tolerate(make(folder, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}), {.share = 1});
  RawImage image;
  EXPECT_THAT(data_error([&] { data->read(0, image); }), HasSubstr("10 of 10"));
}

}  // namespace
}  // namespace lockstep::data
