#include "lockstep/data/decode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cmath>
#include <filesystem>

#include "lockstep/data/image_folder.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using testing::Bytes;
using testing::data_error;
using testing::Folder;
using ::testing::HasSubstr;

Bytes smooth(int height, int width) {
  Bytes rgb;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      rgb.push_back(static_cast<uint8_t>(x * 200 / width));
      rgb.push_back(static_cast<uint8_t>(y * 200 / height));
      rgb.push_back(90);
    }
  }
  return rgb;
}

TEST(Decode, PngIsExact) {
  const Bytes rgb = smooth(13, 29);
  RawImage image;
  decode_image(testing::png(13, 29, rgb), "a.png", image);
  EXPECT_EQ(image.height, 13);
  EXPECT_EQ(image.width, 29);
  EXPECT_EQ(image.channels, 3);
  EXPECT_EQ(image.storage, rgb);
}

TEST(Decode, JpegIsClose) {
  const Bytes rgb = smooth(40, 30);
  RawImage image;
  decode_image(testing::jpeg(40, 30, rgb), "a.jpg", image);
  ASSERT_EQ(image.storage.size(), rgb.size());
  for (size_t i = 0; i < rgb.size(); ++i) {
    ASSERT_NEAR(image.storage[i], rgb[i], 12) << i;
  }
}

TEST(Decode, TruncatedAtAnyByteIsAnError) {
  const Bytes rgb = smooth(24, 24);
  RawImage image;
  for (const Bytes& good :
       {testing::png(24, 24, rgb), testing::jpeg(24, 24, rgb)}) {
    // The last two bytes of a JPEG say that it ends; without them it is whole
    // all the same, so libjpeg only warns.
    for (size_t size = 0; size < good.size(); ++size) {
      const std::span<const uint8_t> part(good.data(), size);
      EXPECT_THAT(
          data_error([&] { decode_image(part, "x.img", image); }),
          HasSubstr("x.img"))
          << size << " of " << good.size();
    }
  }
}

TEST(Decode, FlippedBytesNeverCrash) {
  const Bytes rgb = smooth(16, 16);
  RawImage image;
  for (const Bytes& good :
       {testing::png(16, 16, rgb), testing::jpeg(16, 16, rgb)}) {
    for (size_t at = 0; at < good.size(); ++at) {
      Bytes bad = good;
      bad[at] ^= 0xa5;
      try {
        decode_image(bad, "x", image);
      } catch (const DataError&) {}
    }
  }
  // Still fit for use.
  decode_image(testing::png(16, 16, rgb), "x", image);
  EXPECT_EQ(image.storage, rgb);
}

TEST(Decode, HugeImagesAreRefused) {
  Bytes bad = testing::png(4, 4, smooth(4, 4));
  // 65,535 x 65,535 in the header, its checksum made to fit.
  const Bytes header = {
      'I', 'H', 'D', 'R', 0, 0, 0xff, 0xff, 0, 0, 0xff, 0xff, 8, 2, 0, 0, 0};
  uint32_t crc = 0xffffffff;
  for (uint8_t byte : header) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xedb88320u : 0);
    }
  }
  crc = ~crc;
  std::copy(header.begin(), header.end(), bad.begin() + 12);
  for (int i = 0; i < 4; ++i) {
    bad[static_cast<size_t>(29 + i)] =
        static_cast<uint8_t>(crc >> (24 - 8 * i));
  }
  RawImage image;
  EXPECT_THAT(
      data_error([&] { decode_image(bad, "big.png", image); }),
      HasSubstr("big.png: 65535 x 65535 pixels, more than the 100000000"));
  EXPECT_EQ(image_size(bad, "big.png").height, 65535);
}

TEST(Decode, SizesStandInTheHeader) {
  const Bytes rgb = smooth(13, 29);
  for (Bytes file : {testing::png(13, 29, rgb), testing::jpeg(13, 29, rgb)}) {
    file.resize(file.size() - 20);  // damaged, but not there
    const auto size = image_size(file, "a");
    EXPECT_EQ(size.height, 13);
    EXPECT_EQ(size.width, 29);
    file.resize(10);
    EXPECT_THAT(
        data_error([&] { image_size(file, "a.img"); }), HasSubstr("a.img"));
  }
}

TEST(Decode, OtherContent) {
  RawImage image;
  EXPECT_THAT(
      data_error([&] { decode_image({}, "e.png", image); }),
      HasSubstr("e.png: empty file"));
  EXPECT_THAT(
      data_error([&] { decode_image(Bytes{'G', 'I', 'F'}, "g.png", image); }),
      HasSubstr("g.png: neither a PNG nor a JPEG"));
}

DatasetOptions folder_options(const Folder& folder, bool train = true) {
  DatasetOptions options;
  options.name = "folder";
  options.root = folder.path();
  options.train = train;
  return options;
}

TEST(ImageFolder, ClassesAreFolders) {
  Folder folder;
  const Bytes rgb = smooth(5, 6);
  folder.write("dog/b.PNG", testing::png(5, 6, rgb));
  folder.write("dog/deep/c.jpeg", testing::jpeg(5, 6, rgb));
  folder.write("cat/a.jpg", testing::jpeg(5, 6, rgb));
  folder.write("cat/notes.txt", std::string("no image"));
  folder.write("empty/notes.txt", std::string("no image"));
  folder.write("stray.png", testing::png(5, 6, rgb));
  ::testing::internal::CaptureStderr();
  const auto dataset = open_dataset(folder_options(folder));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("passed over 3 files"));
  EXPECT_EQ(dataset->classes(), (std::vector<std::string>{"cat", "dog"}));
  ASSERT_EQ(dataset->size(), 3);
  EXPECT_EQ(dataset->label(0), 0);
  EXPECT_EQ(dataset->label(1), 1);
  RawImage image;
  dataset->read(1, image);
  EXPECT_EQ(image.storage, rgb);
  EXPECT_THAT(
      data_error([&] { open_dataset(folder_options(folder, false)); }),
      HasSubstr("has no test images"));
}

TEST(ImageFolder, AClassCalledTrainIsAClass) {
  Folder folder;
  const Bytes image = testing::png(2, 2, Bytes(12, 7));
  folder.write("bus/a.png", image);
  folder.write("train/deep/b.png", image);
  folder.write("truck/c.png", image);
  const auto names = [&](bool train) {
    return open_image_folder(folder.path(), train, 0)->classes();
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(names(true), (Names{"bus", "train", "truck"}));
  EXPECT_THAT(data_error([&] { names(false); }), HasSubstr("no test images"));
  folder.write("test/bus/d.png", image);
  EXPECT_EQ(names(true), Names{"deep"});
  EXPECT_EQ(names(false), Names{"bus"});
}

TEST(ImageFolder, TrainAloneIsTheTrainingPart) {
  Folder folder;
  const Bytes image = testing::png(2, 2, Bytes(12, 7));
  folder.write("train/a/1.png", image);
  folder.write("train/b/2.png", image);
  folder.write("notes/read.txt", Bytes(3));
  const auto dataset = open_image_folder(folder.path(), true, 0);
  EXPECT_EQ(dataset->classes(), (std::vector<std::string>{"a", "b"}));
}

TEST(ImageFolder, TrainingNeverShowsATestImage) {
  for (const char* held : {"val", "test"}) {
    const Bytes image = testing::png(2, 2, Bytes(12, 7));
    Folder flat;
    flat.write("a.png", image);
    flat.write("b.png", image);
    flat.write(std::string(held) + "/c.png", image);
    const auto training = open_image_folder(flat.path(), true, 0);
    ASSERT_EQ(training->size(), 2);
    EXPECT_TRUE(training->classes().empty());
    EXPECT_THAT(training->name(0), HasSubstr("a.png"));
    EXPECT_EQ(open_image_folder(flat.path(), false, 0)->size(), 1);
    Folder classes;
    classes.write("cat/a.png", image);
    classes.write(std::string(held) + "/cat/b.png", image);
    const auto cats = open_image_folder(classes.path(), true, 0);
    EXPECT_EQ(cats->classes(), std::vector<std::string>{"cat"});
  }
}

TEST(ImageFolder, LinksUpwardsRepeatNothing) {
  namespace fs = std::filesystem;
  Folder folder;
  const Bytes image = testing::png(2, 2, Bytes(12, 7));
  folder.write("train/a/1.png", image);
  folder.write("train/b/deep/2.png", image);
  folder.write("test/a/3.png", image);
  folder.write("elsewhere/4.png", image);
  fs::create_directory_symlink("..", folder.at("train/a/up"));
  fs::create_directory_symlink(".", folder.at("train/b/deep/self"));
  fs::create_directory_symlink("../..", folder.at("train/b/top"));
  fs::create_directory_symlink("..", folder.at("train/root"));
  fs::create_directory_symlink("../elsewhere", folder.at("train/c"));
  const auto dataset = open_image_folder(folder.path(), true, 0);
  EXPECT_EQ(dataset->size(), 3);
  EXPECT_EQ(dataset->classes(), (std::vector<std::string>{"a", "b", "c"}));
}

TEST(ImageFolder, APipeIsNoImage) {
  Folder folder;
  folder.write("a.png", testing::png(2, 2, Bytes(12, 7)));
  ASSERT_EQ(::mkfifo(folder.at("b.png").c_str(), 0600), 0);
  const auto dataset = open_image_folder(folder.path(), true, 0);
  RawImage image;
  EXPECT_THAT(
      data_error([&] { dataset->read(1, image); }), HasSubstr("not a file"));
}

TEST(ImageFolder, FlatSplitAndCorrupt) {
  Folder folder;
  const Bytes rgb = smooth(5, 6);
  folder.write("train/a.png", testing::png(5, 6, rgb));
  folder.write("train/b.png", std::string("garbage"));
  folder.write("test/a.png", testing::png(5, 6, rgb));
  const auto train = open_dataset(folder_options(folder));
  EXPECT_EQ(train->size(), 2);
  EXPECT_TRUE(train->classes().empty());
  EXPECT_EQ(train->label(1), 0);
  EXPECT_EQ(open_dataset(folder_options(folder, false))->size(), 1);
  RawImage image;
  train->read(0, image);
  EXPECT_THAT(
      data_error([&] { train->read(1, image); }),
      HasSubstr(folder.at("train/b.png") + ": neither"));
  Folder nothing;
  EXPECT_THAT(
      data_error([&] { open_dataset(folder_options(nothing)); }),
      HasSubstr("no images in " + nothing.path()));
}

}  // namespace
}  // namespace lockstep::data
