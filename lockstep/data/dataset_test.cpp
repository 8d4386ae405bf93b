#include "lockstep/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <set>
#include <span>

#include "lockstep/data/pickle.h"
#include "lockstep/data/test_files.h"

namespace lockstep::data {
namespace {

using testing::Bytes;
using testing::cifar_binary;
using testing::cifar_pickle;
using testing::cifar_pixel;
using testing::data_error;
using testing::Folder;
using testing::gzip;
using ::testing::HasSubstr;
using testing::idx_images;
using testing::idx_labels;

DatasetOptions
options(const std::string& name, const std::string& root, bool train = true) {
  DatasetOptions result;
  result.name = name;
  result.root = root;
  result.train = train;
  return result;
}

void expect_cifar(const Dataset& dataset, int count) {
  ASSERT_EQ(dataset.size(), count);
  EXPECT_EQ(dataset.channels(), 3);
  EXPECT_EQ(dataset.image_size().height, 32);
  EXPECT_EQ(dataset.image_size().width, 32);
  EXPECT_EQ(dataset.classes().size(), 10u);
  RawImage image;
  for (int i = 0; i < count; ++i) {
    EXPECT_EQ(dataset.label(i), i % 10);
    dataset.read(i, image);
    ASSERT_EQ(image.pixels.size(), 3072u);
    for (int p = 0; p < 1024; ++p) {
      for (int c = 0; c < 3; ++c) {
        ASSERT_EQ(
            image.pixels[static_cast<size_t>(p * 3 + c)], cifar_pixel(i, c, p));
      }
    }
  }
}

void write_cifar(const Folder& folder, const std::string& kind) {
  for (int i = 0; i < 6; ++i) {
    const std::string stem =
        i == 5 ? "test_batch" : "data_batch_" + std::to_string(i + 1);
    const int first = i == 5 ? 0 : i * 3;
    if (kind == "bin") {
      folder.write(stem + ".bin", cifar_binary(3, first));
    } else if (kind == "pickle") {
      folder.write(stem, cifar_pickle(3, first));
    } else {
      Bytes rgb;
      for (int k = first; k < first + 3; ++k) {
        for (int p = 0; p < 1024; ++p) {
          for (int c = 0; c < 3; ++c) {
            rgb.push_back(cifar_pixel(k, c, p));
          }
        }
      }
      folder.write(stem + ".png", testing::png(3, 1024, rgb));
    }
  }
  if (kind == "png") {
    folder.write("train_lables.json", "[0,1,2,3,4,5,6,7,8,9,0,1,2,3,4]");
    folder.write("test_lables.json", "[0,1,2]");
  }
}

class Cifar : public ::testing::TestWithParam<const char*> {};

TEST_P(Cifar, ReadsBothSplits) {
  Folder folder;
  write_cifar(folder, GetParam());
  expect_cifar(*open_dataset(options("cifar10", folder.path())), 15);
  expect_cifar(*open_dataset(options("cifar10", folder.path(), false)), 3);
  DatasetOptions few = options("cifar10", folder.path());
  few.limit = 7;
  expect_cifar(*open_dataset(few), 7);
  few.limit = 700;
  expect_cifar(*open_dataset(few), 15);
}

INSTANTIATE_TEST_SUITE_P(
    Layouts,
    Cifar,
    ::testing::Values("bin", "pickle", "png"));

TEST(CifarErrors, NameFileAndFault) {
  Folder folder;
  auto open = [&] { open_dataset(options("cifar10", folder.path())); };
  EXPECT_THAT(
      data_error(open),
      HasSubstr("lockstep data get cifar10 --to " + folder.path()));
  write_cifar(folder, "bin");
  Bytes bytes = cifar_binary(3);
  bytes.pop_back();
  folder.write("data_batch_2.bin", bytes);
  EXPECT_THAT(data_error(open), HasSubstr("data_batch_2.bin: truncated"));
  bytes = cifar_binary(3);
  bytes[3073] = 10;
  folder.write("data_batch_2.bin", bytes);
  EXPECT_THAT(
      data_error(open),
      HasSubstr("data_batch_2.bin: label 10 of image 1 is out of range"));
  std::filesystem::remove(folder.at("data_batch_2.bin"));
  EXPECT_THAT(data_error(open), HasSubstr("data_batch_2.bin is missing"));
}

TEST(CifarErrors, SheetsAndLabelsMustMatch) {
  Folder folder;
  write_cifar(folder, "png");
  auto open = [&] { open_dataset(options("cifar10", folder.path(), false)); };
  for (auto [text, what] :
       {std::pair{"[0,1]", "2 labels for 3 images"},
        {"[0,1,2,3]", "4 labels for 3 images"},
        {"[0,1,77]", "label 77 of image 2 is out of range"},
        {"[0,1,", "expected a JSON list"},
        {"[0,1,\"x\"]", "out of range"}}) {
    folder.write("test_lables.json", std::string(text));
    EXPECT_THAT(data_error(open), HasSubstr(what));
  }
  // A text of it would need a stack as deep as it is.
  const std::string deep =
      "[0," + std::string(200'000, '[') + std::string(200'000, ']') + "]";
  folder.write("test_lables.json", deep);
  EXPECT_THAT(
      data_error(open), HasSubstr("label [...] of image 1 is out of range"));
  folder.write("test_batch.png", testing::png(3, 10, Bytes(90)));
  folder.write("test_lables.json", std::string("[0,1,2]"));
  EXPECT_THAT(data_error(open), HasSubstr("test_batch.png: 10 pixels wide"));
}

// Every prefix and many flipped bytes of a pickle: an error, never a crash.
TEST(CifarErrors, DamagedPickles) {
  const Bytes good = cifar_pickle(1);
  for (size_t size = 0; size < good.size();
       size += size < 400 || size + 60 > good.size() ? 1 : 97) {
    const std::span<const uint8_t> part(good.data(), size);
    EXPECT_THAT(
        data_error([&] { read_pickled_batch(part, "test_batch"); }),
        HasSubstr("test_batch: bad pickle at byte"))
        << size;
  }
  for (size_t at = 0; at < 330; ++at) {
    for (uint8_t mask : {0x01, 0x80, 0xff}) {
      Bytes bad = good;
      bad[at] ^= mask;
      try {
        read_pickled_batch(bad, "test_batch");
      } catch (const DataError&) {}
    }
  }
}

TEST(CifarErrors, PicklesThatCallAreRefused) {
  Folder folder;
  folder.write(
      "test_batch",
      std::string(
          "\x80\x02"
          "cos\nsystem\nU\x02ls\x85R."));
  EXPECT_THAT(
      data_error(
          [&] { open_dataset(options("cifar10", folder.path(), false)); }),
      HasSubstr("it wants os.system"));
  // Nested deeper than any stack: no recursion anywhere.
  folder.write(
      "test_batch", "\x80\x02N" + std::string(3'000'000, '\x85') + ".");
  EXPECT_THAT(
      data_error(
          [&] { open_dataset(options("cifar10", folder.path(), false)); }),
      HasSubstr("too many objects"));
}

TEST(Idx, ReadsPlainAndZipped) {
  for (bool zipped : {false, true}) {
    Folder folder;
    const std::string ending = zipped ? ".gz" : "";
    auto pack = [&](const Bytes& b) { return zipped ? gzip(b) : b; };
    folder.write(
        "train-images-idx3-ubyte" + ending, pack(idx_images(20, 5, 4)));
    folder.write("train-labels-idx1-ubyte" + ending, pack(idx_labels(20)));
    folder.write("t10k-images-idx3-ubyte" + ending, pack(idx_images(3, 5, 4)));
    folder.write("t10k-labels-idx1-ubyte" + ending, pack(idx_labels(3)));
    DatasetOptions train = options("mnist", folder.path());
    EXPECT_EQ(open_dataset(options("mnist", folder.path(), false))->size(), 3);
    for (int64_t limit : {0, 7}) {
      train.limit = limit;
      const auto dataset = open_dataset(train);
      ASSERT_EQ(dataset->size(), limit == 0 ? 20 : 7);
      EXPECT_EQ(dataset->channels(), 1);
      RawImage image;
      dataset->read(6, image);
      EXPECT_EQ(image.height, 5);
      EXPECT_EQ(image.width, 4);
      EXPECT_EQ(image.pixels[19], 6 * 7 + 19);
      EXPECT_EQ(dataset->label(6), 6);
    }
  }
}

TEST(Idx, GzipOfSeveralMembers) {
  Folder folder;
  const Bytes images = idx_images(4, 3, 3);
  Bytes zipped;
  for (size_t from = 0; from < images.size(); from += 16) {
    const auto part = gzip(Bytes(
        images.begin() + static_cast<std::ptrdiff_t>(from),
        images.begin() +
            static_cast<std::ptrdiff_t>(std::min(from + 16, images.size()))));
    zipped.insert(zipped.end(), part.begin(), part.end());
  }
  folder.write("train-labels-idx1-ubyte", idx_labels(4));
  folder.write("train-images-idx3-ubyte.gz", zipped);
  const auto open = [&] {
    return open_dataset(options("mnist", folder.path()));
  };
  EXPECT_EQ(open()->size(), 4);
  const Bytes extra = gzip(Bytes(1));
  zipped.insert(zipped.end(), extra.begin(), extra.end());
  folder.write("train-images-idx3-ubyte.gz", zipped);
  EXPECT_THAT(data_error(open), HasSubstr("longer than the 52 bytes"));
  zipped.resize(zipped.size() - extra.size() - 1);
  folder.write("train-images-idx3-ubyte.gz", zipped);
  EXPECT_THAT(data_error(open), HasSubstr("truncated"));
}

TEST(Idx, ErrorsNameFileAndFault) {
  Folder folder;
  const Bytes images = idx_images(4, 3, 3);
  const Bytes labels = idx_labels(4);
  auto attempt = [&](const Bytes& image_file, const Bytes& label_file) {
    folder.write("train-images-idx3-ubyte", image_file);
    folder.write("train-labels-idx1-ubyte", label_file);
    return data_error([&] { open_dataset(options("mnist", folder.path())); });
  };
  Bytes bad = images;
  bad[3] = 9;
  EXPECT_THAT(attempt(bad, labels), HasSubstr("magic number 0x00000809"));
  bad = images;
  bad[4] = 0xff;
  EXPECT_THAT(attempt(bad, labels), HasSubstr("images-idx3-ubyte: "));
  bad = images;
  bad.push_back(0);
  EXPECT_THAT(attempt(bad, labels), HasSubstr("longer than the 52 bytes"));
  EXPECT_THAT(attempt(images, idx_labels(3)), HasSubstr("3 labels for 4"));
  bad = labels;
  bad[9] = 12;
  EXPECT_THAT(attempt(images, bad), HasSubstr("label 12 of image 1"));
  for (size_t size = 0; size < images.size(); ++size) {
    bad.assign(
        images.begin(), images.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THAT(attempt(bad, labels), HasSubstr("truncated")) << size;
  }
}

TEST(Idx, TruncatedAndDamagedGzip) {
  Folder folder;
  const Bytes good = gzip(idx_images(4, 30, 30));
  folder.write("train-labels-idx1-ubyte", idx_labels(4));
  auto open = [&] { open_dataset(options("mnist", folder.path())); };
  for (size_t size = 2; size < good.size(); ++size) {
    folder.write(
        "train-images-idx3-ubyte.gz",
        Bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)));
    EXPECT_THAT(data_error(open), HasSubstr("idx3-ubyte.gz: truncated"))
        << size;
  }
  for (size_t at = 10; at < good.size(); ++at) {
    Bytes bad = good;
    bad[at] ^= 0x55;
    folder.write("train-images-idx3-ubyte.gz", bad);
    EXPECT_THAT(data_error(open), HasSubstr("idx3-ubyte.gz")) << at;
  }
}

TEST(Idx, DebiansFashionMnist) {
  Folder cache;  // empty, so that the package is what is found
  ::setenv("LOCKSTEP_DATA", cache.path().c_str(), 1);
  const auto train = open_dataset(options("fashion_mnist", ""));
  const auto test = open_dataset(options("fashion_mnist", "", false));
  const std::string digits =
      data_error([] { open_dataset(options("mnist", "")); });
  ::unsetenv("LOCKSTEP_DATA");
  EXPECT_THAT(digits, HasSubstr(cache.path() + "/mnist"));
  EXPECT_TRUE(digits.ends_with("lockstep data get mnist"));
  EXPECT_EQ(train->size(), 60000);
  EXPECT_EQ(test->size(), 10000);
  EXPECT_EQ(train->classes()[9], "Ankle boot");
  EXPECT_EQ(train->label(0), 9);  // the first is one
  std::vector<int> counts(10);
  for (int64_t i = 0; i < train->size(); ++i) {
    ++counts[static_cast<size_t>(train->label(i))];
  }
  EXPECT_EQ(counts, std::vector<int>(10, 6000));
  RawImage image;
  train->read(0, image);
  EXPECT_EQ(image.height, 28);
  EXPECT_EQ(image.width, 28);
}

TEST(Synthetic, IsDeterministicAndSplit) {
  DatasetOptions wanted = options("synthetic", "");
  wanted.image_size = 17;
  wanted.length = 300;
  const auto a = open_dataset(wanted);
  const auto b = open_dataset(wanted);
  wanted.train = false;
  const auto other = open_dataset(wanted);
  RawImage x, y, z;
  std::set<int64_t> labels;
  for (int64_t i = 0; i < 300; ++i) {
    a->read(i, x);
    b->read(i, y);
    other->read(i, z);
    EXPECT_EQ(x.storage, y.storage);
    EXPECT_NE(x.storage, z.storage);
    EXPECT_EQ(a->label(i), b->label(i));
    labels.insert(a->label(i));
  }
  EXPECT_EQ(labels.size(), 10u);
  wanted.channels = 2;
  EXPECT_THAT(
      data_error([&] { open_dataset(wanted); }), HasSubstr("accepted: 1, 3"));
}

// A mean image by class, then the nearest mean: far better than chance.
TEST(Synthetic, CanBeLearned) {
  DatasetOptions wanted = options("synthetic", "");
  wanted.image_size = 16;
  wanted.length = 600;
  wanted.num_classes = 4;
  const auto train = open_dataset(wanted);
  wanted.train = false;
  const auto test = open_dataset(wanted);
  const size_t size = 16 * 16 * 3;
  // Energy by direction: squared differences to the neighbours across and
  // down, which a shift of the wave does not change.
  auto features = [&](const Dataset& dataset, int64_t index) {
    RawImage image;
    dataset.read(index, image);
    std::array<double, 4> result{};
    for (size_t i = 0; i + 48 * 2 < size; ++i) {
      const double here = image.pixels[i];
      const double across = image.pixels[i + 3] - here;
      const double down = image.pixels[i + 48] - here;
      result[0] += across * across / 1e4;
      result[1] += down * down / 1e4;
      result[2] +=
          (image.pixels[i + 51] - here) * (image.pixels[i + 51] - here) / 1e4;
      result[3] += (image.pixels[i + 48] - image.pixels[i + 3]) *
                   (image.pixels[i + 48] - image.pixels[i + 3]) / 1e4;
    }
    return result;
  };
  std::array<std::array<double, 4>, 4> means{};
  std::array<double, 4> counts{};
  for (int64_t i = 0; i < train->size(); ++i) {
    const auto f = features(*train, i);
    const auto k = static_cast<size_t>(train->label(i));
    ++counts[k];
    for (size_t d = 0; d < 4; ++d) {
      means[k][d] += f[d];
    }
  }
  int right = 0;
  for (int64_t i = 0; i < test->size(); ++i) {
    const auto f = features(*test, i);
    size_t best = 0;
    double least = 1e300;
    for (size_t k = 0; k < 4; ++k) {
      double distance = 0;
      for (size_t d = 0; d < 4; ++d) {
        const double delta = f[d] - means[k][d] / counts[k];
        distance += delta * delta;
      }
      if (distance < least) {
        least = distance;
        best = k;
      }
    }
    right += static_cast<int64_t>(best) == test->label(i) ? 1 : 0;
  }
  EXPECT_GT(right, 450);  // of 600; chance is 150
}

TEST(OpenDataset, UnknownNamesAreCorrected) {
  EXPECT_THAT(
      data_error([] { open_dataset(options("cifar", "")); }),
      HasSubstr("cifar10"));
  DatasetOptions negative = options("synthetic", "");
  negative.limit = -1;
  EXPECT_THAT(
      data_error([&] { open_dataset(negative); }), HasSubstr("data.limit"));
}

TEST(DataCache, FollowsTheEnvironment) {
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(data_cache(), "/x/lockstep/data");
  ::setenv("LOCKSTEP_DATA", "/y", 1);
  EXPECT_EQ(data_cache(), "/y");
  ::unsetenv("LOCKSTEP_DATA");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_THAT(data_cache(), ::testing::EndsWith("/.cache/lockstep/data"));
}

}  // namespace
}  // namespace lockstep::data
