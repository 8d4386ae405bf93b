#include "lockstep/fetch/datasets.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lockstep/fetch/catalog.h"
#include "lockstep/fetch/checksum.h"

namespace lockstep::fetch {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Datasets, NamesAndSources) {
  EXPECT_THAT(
      dataset_names(), ElementsAre("cifar10", "mnist", "fashion_mnist"));
  const auto wrong = get_dataset("cifar", {});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), ErrorCode::kInvalidInput);
  EXPECT_THAT(wrong.error().to_string(), HasSubstr("did you mean 'cifar10'?"));
  EXPECT_EQ(*parse_dataset_source("registry"), DatasetSource::kRegistry);
  EXPECT_FALSE(parse_dataset_source("elsewhere"));
}

TEST(Datasets, TheCatalogIsWellFormed) {
  for (const auto& entry : dataset_catalog()) {
    for (const auto& file : entry.files) {
      EXPECT_TRUE(parse_checksum("sha256:" + file.sha256)) << file.name;
      EXPECT_EQ(entry.archive.empty(), !file.gz_md5.empty()) << file.name;
    }
    EXPECT_EQ(entry.archive.empty(), entry.archive_md5.empty());
  }
}

TEST(Datasets, TheCacheFollowsTheEnvironment) {
  const auto set = [](const char* name, const char* value) {
    value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
  };
  const char* old = std::getenv("HOME");
  const std::string home = old == nullptr ? "" : old;
  set("HOME", "/h");
  set("XDG_CACHE_HOME", nullptr);
  set("LOCKSTEP_DATA", nullptr);
  EXPECT_EQ(data_cache(), "/h/.cache/lockstep/data");
  set("XDG_CACHE_HOME", "/x");
  EXPECT_EQ(data_cache(), "/x/lockstep/data");
  set("LOCKSTEP_DATA", "/d");
  EXPECT_EQ(data_cache(), "/d");
  set("LOCKSTEP_DATA", nullptr);
  set("XDG_CACHE_HOME", nullptr);
  set("HOME", home.c_str());
}

class DatasetFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lockstep-datasets-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path folder_;
};

TEST_F(DatasetFolder, CheckSaysWhatIsLacking) {
  const auto error = [&] {
    return check_dataset("mnist", folder_).error().to_string();
  };
  EXPECT_THAT(error(), HasSubstr("train-images-idx3-ubyte is not there"));
  const auto path = folder_ / "train-images-idx3-ubyte";
  std::ofstream(path) << "short";
  EXPECT_THAT(error(), HasSubstr("has 5 bytes instead of 47040016"));
  fs::resize_file(path, 47'040'016);
  EXPECT_THAT(error(), HasSubstr("is not the file it should be"));
}

TEST_F(DatasetFolder, AMirrorThatIsNotThereIsNamedAndLeavesNothing) {
  std::vector<std::string> said;
  DatasetOptions options;
  options.to = folder_ / "mnist";
  options.from = "http://127.0.0.1:1/files/";
  options.say = [&](const std::string& line) { said.push_back(line); };
  const auto failed = get_dataset("mnist", options);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(
      failed.error().to_string(),
      HasSubstr("http://127.0.0.1:1/files/train-images-idx3-ubyte.gz"));
  EXPECT_THAT(said, Contains("MNIST: trying http://127.0.0.1:1/files/"));
  EXPECT_FALSE(fs::exists(options.to / "train-images-idx3-ubyte"));
}

TEST_F(DatasetFolder, AFolderThatCannotBeMadeIsAnError) {
  std::ofstream(folder_ / "file") << "x";
  DatasetOptions options;
  options.to = folder_ / "file" / "mnist";
  const auto failed = get_dataset("mnist", options);
  ASSERT_FALSE(failed);
  EXPECT_THAT(
      failed.error().to_string(), HasSubstr((folder_ / "file").string()));
}

// The distribution's package is there on every machine that builds lockstep.
TEST_F(DatasetFolder, FashionMnistFromTheDebianPackage) {
  if (!fs::exists("/usr/share/datasets/fashion-mnist")) {
    GTEST_SKIP() << "package dataset-fashion-mnist is not installed";
  }
  DatasetOptions options;
  options.to = folder_ / "f";
  options.source = DatasetSource::kRegistry;
  EXPECT_EQ(
      packaged_dataset("fashion_mnist"), "/usr/share/datasets/fashion-mnist");
  EXPECT_EQ(packaged_dataset("mnist"), "");
  const auto first = get_dataset("fashion_mnist", options);
  ASSERT_TRUE(first) << first.error().to_string();
  EXPECT_EQ(first->source, "Debian package dataset-fashion-mnist");
  EXPECT_FALSE(first->already);
  EXPECT_EQ(first->bytes, 54'950'048u);
  EXPECT_EQ(first->files.size(), 4u);
  EXPECT_FALSE(fs::exists(options.to / ".fetch"));
  const auto second = get_dataset("fashion_mnist", options);
  ASSERT_TRUE(second);
  EXPECT_TRUE(second->already);

  // A damaged file is noticed and made good.
  fs::resize_file(options.to / "t10k-labels-idx1-ubyte", 100);
  const auto third = get_dataset("fashion_mnist", options);
  ASSERT_TRUE(third);
  EXPECT_FALSE(third->already);
  EXPECT_TRUE(check_dataset("fashion_mnist", options.to));
}

}  // namespace
}  // namespace lockstep::fetch
