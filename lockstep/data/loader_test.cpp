#include "lockstep/data/loader.h"

#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <set>

#include "lockstep/data/sampler.h"

namespace lockstep::data {
namespace {

std::shared_ptr<const Dataset> synthetic(int64_t length, int channels = 3) {
  DatasetOptions options;
  options.name = "synthetic";
  options.length = length;
  options.image_size = 12;
  options.channels = channels;
  return open_dataset(options);
}

LoaderOptions small() {
  LoaderOptions options;
  options.batch_size = 8;
  options.image_size = 16;
  return options;
}

TEST(LoaderTest, ShapesAndLayouts) {
  for (bool last : {true, false}) {
    for (int channels : {1, 3}) {
      LoaderOptions options = small();
      options.channels_last = last;
      Loader loader(synthetic(20, channels), options);
      EXPECT_EQ(loader.batches(), 3);
      loader.start(0);
      const auto batch = loader.next();
      ASSERT_TRUE(batch);
      EXPECT_EQ(batch->size, 8);
      EXPECT_EQ(batch->images.sizes(), (at::IntArrayRef{8, channels, 16, 16}));
      EXPECT_EQ(batch->labels.sizes(), (at::IntArrayRef{8}));
      EXPECT_EQ(batch->images.scalar_type(), at::kFloat);
      EXPECT_TRUE(batch->images.is_contiguous(
          last ? at::MemoryFormat::ChannelsLast
               : at::MemoryFormat::Contiguous));
      loader.next();
      EXPECT_EQ(loader.next()->size, 4);
      EXPECT_FALSE(loader.next());
    }
  }
}

TEST(LoaderTest, LayoutsHoldTheSameNumbers) {
  LoaderOptions options = small();
  Loader a(synthetic(20), options);
  options.channels_last = false;
  options.workers = 3;
  Loader b(synthetic(20), options);
  for (int64_t epoch : {0, 1}) {
    a.start(epoch);
    b.start(epoch);
    while (auto x = a.next()) {
      auto y = b.next();
      EXPECT_TRUE(at::equal(x->images, y->images));
      EXPECT_TRUE(at::equal(x->labels, y->labels));
    }
    EXPECT_FALSE(b.next());
  }
}

TEST(LoaderTest, ResumesMidEpoch) {
  Loader whole(synthetic(100), small());
  Loader resumed(synthetic(100), small());
  whole.start(4);
  for (int i = 0; i < 5; ++i) {
    whole.next();
  }
  resumed.start(4, 5);
  while (auto x = whole.next()) {
    EXPECT_TRUE(at::equal(x->images, resumed.next()->images));
  }
  EXPECT_FALSE(resumed.next());
}

TEST(LoaderTest, RanksShareTheSet) {
  // 40 over 4 ranks: each label of the shard once; batches as counted.
  auto set = synthetic(40);
  int64_t samples = 0;
  for (int rank = 0; rank < 4; ++rank) {
    LoaderOptions options = small();
    options.rank = rank;
    options.world = 4;
    Loader loader(set, options);
    EXPECT_EQ(loader.batches(), batches_per_epoch(40, 4, 8));
    ShardOptions shard_of;
    shard_of.size = 40;
    shard_of.rank = rank;
    shard_of.world = 4;
    const auto indices = shard(shard_of, 0);
    loader.start(0);
    size_t at = 0;
    while (auto batch = loader.next()) {
      for (int64_t i = 0; i < batch->size; ++i) {
        EXPECT_EQ(
            batch->labels.data_ptr<int64_t>()[i], set->label(indices[at++]));
      }
      samples += batch->size;
    }
  }
  EXPECT_EQ(samples, 40);
}

TEST(LoaderTest, ARankWithoutSamplesHasNoBatches) {
  for (const int workers : {0, 1}) {
    for (const int64_t wanted : {0, 2}) {
      LoaderOptions options = small();
      options.world = 3;
      options.rank = 2;
      options.pad = false;
      options.workers = workers;
      options.epoch_batches = wanted;
      Loader loader(synthetic(2), options);
      loader.start(0);
      EXPECT_FALSE(loader.next());
      loader.start(4);
      EXPECT_FALSE(loader.next());
    }
  }
}

TEST(LoaderTest, MemoryIsUsedAgainOnceDropped) {
  Loader loader(synthetic(400), small());
  loader.start(0);
  std::set<const void*> blocks;
  while (auto batch = loader.next()) {
    blocks.insert(batch->images.data_ptr());
  }
  EXPECT_LE(blocks.size(), 4u);  // two ahead, one in hand, one to spare
  // A view keeps its memory from being used again.
  loader.start(1);
  const at::Tensor view = loader.next()->images.select(0, 3);
  const at::Tensor copy = view.clone();
  while (loader.next()) {}
  EXPECT_TRUE(at::equal(view, copy));
}

TEST(LoaderTest, BatchesOutliveTheLoader) {
  std::optional<Batch> batch;
  {
    Loader loader(synthetic(100), small());
    loader.start(0);
    batch = loader.next();
  }
  EXPECT_TRUE(at::equal(batch->images, batch->images.clone()));
}

TEST(LoaderTest, BadOptionsAreNamed) {
  auto message = [](const LoaderOptions& options) {
    try {
      Loader loader(synthetic(20), options);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  LoaderOptions options = small();
  options.batch_size = 0;
  EXPECT_THAT(message(options), ::testing::HasSubstr("data.batch_size = 0"));
  options = small();
  options.batch_size = 21;
  EXPECT_EQ(message(options), "no error");
  options.drop_last = true;
  EXPECT_THAT(
      message(options),
      ::testing::HasSubstr("data.batch_size = 21 is larger than the shard"));
  options = small();
  options.workers = -1;
  EXPECT_THAT(message(options), ::testing::HasSubstr("data.workers = -1"));
}

TEST(LoaderTest, GivesEachImageSmallerToo) {
  LoaderOptions options = small();
  options.image_height = 32;
  options.image_width = 16;
  options.shrink = 4;
  options.flip = true;
  Loader loader(synthetic(20), options);
  LoaderOptions direct = options;
  direct.image_height = 8;
  direct.image_width = 4;
  direct.shrink = 0;
  Loader reference(synthetic(20), direct);
  loader.start(1);
  reference.start(1);
  while (auto batch = loader.next()) {
    EXPECT_EQ(batch->images.size(2), 32);
    EXPECT_EQ(batch->images.size(3), 16);
    EXPECT_TRUE(at::equal(batch->small, reference.next()->images));
  }
  options.shrink = 3;
  EXPECT_THROW(Loader(synthetic(20), options), DataError);
}

TEST(LoaderTest, LastBatchDroppedWhenAsked) {
  LoaderOptions options = small();
  options.drop_last = true;
  options.workers = 0;
  Loader loader(synthetic(20), options);
  EXPECT_EQ(loader.batches(), 2);
  loader.start(0);
  EXPECT_EQ(loader.next()->size, 8);
  EXPECT_EQ(loader.next()->size, 8);
  EXPECT_FALSE(loader.next());
}

TEST(LoaderTest, PinnedBatchesHoldTheSameImages) {
  if (!torch::cuda::is_available()) {
    GTEST_SKIP() << "no GPU here";
  }
  LoaderOptions options = small();
  Loader plain(synthetic(100), options);
  options.pinned = true;
  Loader pinned(synthetic(100), options);
  plain.start(0);
  pinned.start(0);
  std::vector<at::Tensor> copies;
  std::vector<at::Tensor> expected;
  while (auto batch = pinned.next()) {
    EXPECT_TRUE(batch->images.is_pinned());
    EXPECT_TRUE(batch->labels.is_pinned());
    // Left in flight: the block must not be written again before it arrived.
    copies.push_back(batch->images.to(at::kCUDA, /*non_blocking=*/true));
    expected.push_back(plain.next()->images.clone());
  }
  ASSERT_GT(copies.size(), 4u);
  for (size_t i = 0; i < copies.size(); ++i) {
    EXPECT_TRUE(at::equal(copies[i].to(at::kCPU), expected[i])) << i;
  }
}

// The epochs of a loader as lists of labels and pixel sums, batch by batch.
std::vector<std::pair<std::vector<int64_t>, double>>
batches_of(Loader& loader, int64_t epoch, int64_t first = 0) {
  std::vector<std::pair<std::vector<int64_t>, double>> list;
  loader.start(epoch, first);
  while (const auto batch = loader.next()) {
    const auto* labels = batch->labels.data_ptr<int64_t>();
    list.emplace_back(
        std::vector<int64_t>(labels, labels + batch->size),
        batch->images.sum().item<double>());
  }
  return list;
}

TEST(LoaderTest, EpochsOfAnyLengthGoOnThroughTheSet) {
  LoaderOptions options = small();
  Loader passes(synthetic(20), options);
  std::vector<std::pair<std::vector<int64_t>, double>> whole;
  for (int64_t pass = 0; pass < 3; ++pass) {
    for (auto& batch : batches_of(passes, pass)) {
      whole.push_back(batch);
    }
  }
  ASSERT_EQ(whole.size(), 9);  // 3 a pass, the last one short
  for (int64_t wanted : {1, 2, 4, 7}) {
    options.epoch_batches = wanted;
    Loader loader(synthetic(20), options);
    EXPECT_EQ(loader.batches(), wanted);
    for (int64_t epoch = 0; (epoch + 1) * wanted <= 9; ++epoch) {
      const auto list = batches_of(loader, epoch);
      ASSERT_EQ(list.size(), static_cast<size_t>(wanted));
      for (int64_t i = 0; i < wanted; ++i) {
        EXPECT_EQ(
            list[static_cast<size_t>(i)],
            whole[static_cast<size_t>(epoch * wanted + i)]);
      }
    }
  }
  // From the middle, as a resumed run does.
  options.epoch_batches = 7;
  Loader loader(synthetic(20), options);
  const auto rest = batches_of(loader, 0, 5);
  ASSERT_EQ(rest.size(), 2);
  EXPECT_EQ(rest[0], whole[5]);
}

TEST(LoaderTest, CropsAreWindowsOfTheResizedImage) {
  LoaderOptions options = small();
  options.image_size = 16;
  options.shuffle = false;
  options.batch_size = 20;
  Loader whole(synthetic(20), options);
  whole.start(0);
  const auto images = whole.next()->images;
  options.image_size = 11;
  options.crop_from = 16;
  Loader loader(synthetic(20), options);
  std::set<std::pair<int64_t, int64_t>> places;
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    loader.start(epoch);
    const auto batch = loader.next();
    ASSERT_EQ(batch->images.sizes(), (at::IntArrayRef{20, 3, 11, 11}));
    for (int64_t i = 0; i < 20; ++i) {
      int found = 0;
      for (int64_t down = 0; down <= 5; ++down) {
        for (int64_t across = 0; across <= 5; ++across) {
          const auto window =
              images[i].narrow(1, down, 11).narrow(2, across, 11);
          if (at::equal(window, batch->images[i])) {
            places.emplace(down, across);
            ++found;
          }
        }
      }
      EXPECT_GE(found, 1) << i;
    }
  }
  EXPECT_GT(places.size(), 15U);  // of 36, in 40 draws
}

}  // namespace
}  // namespace lockstep::data
