#include "lockstep/data/augment.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>

namespace lockstep::data {
namespace {

at::Tensor some_pixels(int64_t count, int64_t channels, int64_t side) {
  return at::randint(0, 256, {count, channels, side, side}, at::kByte);
}

AugmentOptions plain(int64_t size) {
  AugmentOptions options;
  options.image_size = size;
  return options;
}

TEST(Augment, NormalisesAsTheArithmeticSays) {
  const auto pixels = some_pixels(3, 3, 8);
  auto options = plain(8);
  options.mean = {.1f, .2f, .3f};
  options.stddev = {.5f, .6f, .7f};
  const auto got = normalised(pixels, options);
  const auto mean = at::tensor({.1f, .2f, .3f}).view({1, 3, 1, 1});
  const auto stddev = at::tensor({.5f, .6f, .7f}).view({1, 3, 1, 1});
  const auto expected = (pixels.to(at::kFloat) / 255 - mean) / stddev;
  EXPECT_TRUE(at::allclose(got, expected, 1e-5, 1e-6));
  EXPECT_TRUE(got.is_contiguous(at::MemoryFormat::ChannelsLast));
  EXPECT_EQ(
      normalised(some_pixels(2, 1, 8), plain(20)).sizes(),
      (std::vector<int64_t>{2, 1, 20, 20}));
}

TEST(Augment, FlipsWhereTheMaskSays) {
  const auto pixels = some_pixels(2, 3, 5);
  const auto got = flipped(pixels, at::tensor({0, 1}));
  EXPECT_TRUE(at::equal(got[0], pixels[0]));
  EXPECT_TRUE(at::equal(got[1], pixels[1].flip(2)));
}

TEST(Augment, CropsOutOfThePaddedImage) {
  const auto pixels = some_pixels(3, 3, 6) + 1;
  // The middle is the image itself; the corners show the padding.
  const auto got = cropped(
      pixels,
      2,
      at::tensor(std::vector<int64_t>{2, 0, 4}),
      at::tensor(std::vector<int64_t>{2, 1, 4}));
  EXPECT_TRUE(at::equal(got[0], pixels[0]));
  using at::indexing::Slice;
  EXPECT_EQ(got[1].index({Slice(), Slice(0, 2)}).sum().item<int64_t>(), 0);
  EXPECT_TRUE(
      at::equal(
          got[1].index({Slice(), Slice(2, 6), Slice(1, 6)}),
          pixels[1].index({Slice(), Slice(0, 4), Slice(0, 5)})));
  EXPECT_TRUE(
      at::equal(
          got[2].index({Slice(), Slice(0, 4), Slice(0, 4)}),
          pixels[2].index({Slice(), Slice(2, 6), Slice(2, 6)})));
}

TEST(Augment, EqualKeysGiveEqualBatches) {
  const auto pixels = some_pixels(16, 3, 8);
  const auto labels = at::arange(16, at::kLong);
  auto options = plain(16);
  options.flip = true;
  options.padding = 2;
  options.mixup = .8;
  const auto first = augmented(pixels, labels, options, 7);
  at::manual_seed(99);  // the default generator has no say
  const auto again = augmented(pixels, labels, options, 7);
  const auto other = augmented(pixels, labels, options, 8);
  EXPECT_TRUE(at::equal(first.images, again.images));
  EXPECT_TRUE(at::equal(first.others, again.others));
  EXPECT_EQ(first.share, again.share);
  EXPECT_FALSE(at::equal(first.images, other.images));
  EXPECT_NE(first.share, other.share);
}

TEST(Augment, WithoutAnythingRandomItIsThePlainBatch) {
  const auto labels = at::arange(4, at::kLong);
  const auto floats = at::randn({4, 3, 8, 8});
  const auto same = augmented(floats, labels, plain(8), 1);
  EXPECT_TRUE(same.images.is_same(floats));
  EXPECT_FALSE(same.others.defined());
  const auto pixels = some_pixels(4, 3, 8);
  EXPECT_TRUE(
      at::equal(
          augmented(pixels, labels, plain(8), 1).images,
          normalised(pixels, plain(8))));
}

TEST(Augment, MixesImagesAndLabelsAlike) {
  const auto labels = at::arange(6, at::kLong);
  // Every image is its label.
  const auto floats =
      labels.to(at::kFloat).view({6, 1, 1, 1}).expand({6, 3, 4, 4}).clone();
  auto options = plain(4);
  options.mixup = .4;
  std::set<double> shares;
  for (uint64_t key = 0; key < 200; ++key) {
    const auto mixed = augmented(floats, labels, options, key);
    EXPECT_GE(mixed.share, 0);
    EXPECT_LE(mixed.share, 1);
    shares.insert(mixed.share);
    const auto expected = labels.to(at::kFloat) * mixed.share +
                          mixed.others.to(at::kFloat) * (1 - mixed.share);
    EXPECT_TRUE(
        at::allclose(mixed.images.mean({1, 2, 3}), expected, 1e-4, 1e-4));
    EXPECT_TRUE(at::equal(std::get<0>(mixed.others.sort()), labels));
  }
  EXPECT_GT(shares.size(), 190u);
}

// Beta(a, a): mean 1/2, variance 1 / (4 (2a + 1)).
TEST(Augment, SharesFollowTheBetaDistribution) {
  const auto labels = at::zeros({1}, at::kLong);
  const auto image = at::zeros({1, 1, 1, 1});
  for (const double alpha : {.2, 1., 3.}) {
    auto options = plain(1);
    options.mixup = alpha;
    const int count = 4000;
    double sum = 0;
    double squares = 0;
    for (int key = 0; key < count; ++key) {
      const double share =
          augmented(image, labels, options, static_cast<uint64_t>(key)).share;
      sum += share;
      squares += (share - .5) * (share - .5);
    }
    EXPECT_NEAR(sum / count, .5, .03) << alpha;
    EXPECT_NEAR(squares / count, 1 / (4 * (2 * alpha + 1)), .012) << alpha;
  }
}

TEST(Augment, AVanishingAlphaDoesNotMix) {
  const auto labels = at::zeros({1}, at::kLong);
  const auto image = at::zeros({1, 1, 1, 1});
  for (const double alpha : {1e-9, 1e-300, 5e-324}) {
    auto options = plain(1);
    options.mixup = alpha;
    int whole = 0;
    for (uint64_t key = 0; key < 64; ++key) {
      const double share = augmented(image, labels, options, key).share;
      EXPECT_TRUE(share < 1e-6 || share > 1 - 1e-6) << alpha << " " << share;
      whole += share > .5;
    }
    EXPECT_GT(whole, 16);
    EXPECT_LT(whole, 48);
  }
}

TEST(Augment, DrawsAllPlacesOfACropAndBothSides) {
  const int64_t count = 2000;
  auto pixels = at::zeros({count, 1, 5, 5}, at::kByte);
  pixels.select(2, 2).select(2, 1).fill_(255);
  auto options = plain(5);
  options.padding = 1;
  options.flip = true;
  const auto out =
      augmented(pixels, at::zeros({count}, at::kLong), options, 3).images;
  const auto places = out.view({count, 25}).argmax(1).bincount({}, 25);
  // Rows 1 to 3; columns 0 to 2, and 2 to 4 when mirrored.
  int64_t seen = 0;
  for (int64_t place = 0; place < 25; ++place) {
    const int64_t hits = places[place].item<int64_t>();
    const int64_t row = place / 5;
    EXPECT_EQ(hits > 0, row >= 1 && row <= 3) << place;
    seen += hits;
  }
  EXPECT_EQ(seen, count);
}

}  // namespace
}  // namespace lockstep::data
