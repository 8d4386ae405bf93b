#include "lockstep/record/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "lockstep/record/temporary_folder_test.h"

namespace lockstep::record {
namespace {

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <class Number>
TensorView view(
    std::string name,
    std::string dtype,
    std::vector<int64_t> shape,
    const std::vector<Number>& values) {
  return {
      std::move(name),
      std::move(dtype),
      std::move(shape),
      std::as_bytes(std::span(values))};
}

// A file with this header, as another writer would make it.
std::string file_of(const std::string& header, size_t data) {
  const uint64_t length = header.size();
  std::string text(reinterpret_cast<const char*>(&length), 8);
  return text + header + std::string(data, 'x');
}

std::string problem_of(std::string_view file) {
  std::vector<TensorView> tensors;
  Metadata metadata;
  auto parsed = parse_safetensors(as_bytes(file), tensors, metadata);
  if (parsed) {
    return "";
  }
  EXPECT_EQ(parsed.error().code(), ErrorCode::kCorrupt);
  EXPECT_TRUE(tensors.empty());
  return parsed.error().message();
}

TEST(Safetensors, RoundTrip) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::vector<float> weights = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> step = {42};
  const std::vector<uint8_t> flags = {1, 0, 1};
  const Metadata metadata = {{"format", "pt"}, {"note", "a \"quote\"\n"}};
  ASSERT_TRUE(write_safetensors(
      os::real_files(),
      path,
      {view("flags", "BOOL", {3}, flags),
       view("model.weight", "F32", {2, 3}, weights),
       view("optimiser/step", "I64", {}, step),
       view("empty", "F32", {0, 7}, std::vector<float>())},
      metadata));
  auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file) << file.error().to_string();
  EXPECT_EQ(file->metadata(), metadata);
  ASSERT_EQ(file->tensors().size(), 4U);
  const TensorView* found = file->find("model.weight");
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->dtype, "F32");
  EXPECT_EQ(found->shape, (std::vector<int64_t>{2, 3}));
  ASSERT_EQ(found->bytes.size(), 24U);
  EXPECT_EQ(std::memcmp(found->bytes.data(), weights.data(), 24), 0);
  EXPECT_EQ(file->find("empty")->shape, (std::vector<int64_t>{0, 7}));
  EXPECT_TRUE(file->find("optimiser/step")->shape.empty());
  EXPECT_EQ(file->find("absent"), nullptr);
}

TEST(Safetensors, EveryTensorIsAlignedToItsElement) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "x.safetensors";
  const std::vector<uint8_t> bytes = {1, 2, 3};
  const std::vector<uint16_t> halves = {1};
  const std::vector<double> doubles = {1};
  const std::vector<float> floats = {1};
  ASSERT_TRUE(write_safetensors(
      os::real_files(),
      path,
      {view("a", "U8", {3}, bytes),
       view("b", "BF16", {1}, halves),
       view("c", "F32", {1}, floats),
       view("d", "F64", {1}, doubles)},
      {}));
  auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file);
  for (const auto& tensor : file->tensors()) {
    const auto address = reinterpret_cast<uintptr_t>(tensor.bytes.data());
    EXPECT_EQ(address % dtype_size(tensor.dtype), 0U) << tensor.name;
  }
}

TEST(Safetensors, AFlippedBitIsFound) {
  const TemporaryFolder folder;
  const os::Path path = folder.path() / "a.safetensors";
  const std::vector<float> values(1000, 1.5F);
  ASSERT_TRUE(write_safetensors(
      os::real_files(),
      path,
      {view("w", "F32", {1000}, values)},
      {{"note", "kept"}}));
  const std::string whole = *os::real_files().read(path);
  ASSERT_TRUE(SafetensorsFile::open(path));
  for (const size_t back : {size_t{1}, size_t{2000}, size_t{4000}}) {
    std::string damaged = whole;
    damaged[damaged.size() - back] ^= 4;
    ASSERT_TRUE(os::real_files().write_atomic(path, damaged));
    const auto file = SafetensorsFile::open(path);
    ASSERT_FALSE(file) << back;
    EXPECT_THAT(
        file.error().to_string(), testing::HasSubstr("damaged after it was"));
    EXPECT_THAT(file.error().to_string(), testing::HasSubstr("a.safetensors"));
  }
}

// Of the length, the header and its padding. What is not found is in the name
// of the sums: the file is then one without sums, and all else of it is whole.
TEST(Safetensors, AFlippedBitOfTheHeaderIsFound) {
  const TemporaryFolder folder;
  const os::Path path = folder.path() / "a.safetensors";
  // Data that could be padding of a header that is longer.
  const std::vector<uint8_t> values(16, ' ');
  const Metadata metadata = {{"lockstep.step", "12"}, {"note", "kept"}};
  ASSERT_TRUE(write_safetensors(
      os::real_files(), path, {view("w", "U8", {16}, values)}, metadata));
  const std::string whole = *os::real_files().read(path);
  const std::string name = "lockstep.crc32c";
  const size_t from = whole.find(name);
  ASSERT_NE(from, std::string::npos);
  const size_t end = whole.size() - values.size();
  ASSERT_EQ(whole[end - 1], ' ');  // the header has padding
  for (size_t at = 0; at < end; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      std::ofstream(path, std::ios::binary) << damaged;
      const auto file = SafetensorsFile::open(path);
      if (!file) {
        EXPECT_EQ(file.error().code(), ErrorCode::kCorrupt);
        continue;
      }
      ASSERT_GE(at, from) << whole.substr(8) << " bit " << bit;
      ASSERT_LT(at, from + name.size()) << whole.substr(8) << " bit " << bit;
      for (const auto& [key, value] : metadata) {
        EXPECT_EQ(file->metadata().at(key), value);
      }
      ASSERT_EQ(file->tensors().size(), 1U);
      ASSERT_EQ(file->tensors()[0].bytes.size(), values.size());
      EXPECT_EQ(file->tensors()[0].name, "w");
    }
  }
}

TEST(Safetensors, ADamagedHeaderIsSaidToBe) {
  const TemporaryFolder folder;
  const os::Path path = folder.path() / "a.safetensors";
  const std::vector<float> values(2, 1.5F);
  ASSERT_TRUE(write_safetensors(
      os::real_files(),
      path,
      {view("w", "F32", {2}, values)},
      {{"note", "kept"}}));
  std::string damaged = *os::real_files().read(path);
  damaged[damaged.find("kept")] ^= 1;
  damaged.back() ^= 1;  // such a header hid a flipped bit of the data, too
  std::ofstream(path, std::ios::binary) << damaged;
  const auto file = SafetensorsFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_THAT(
      file.error().to_string(),
      testing::HasSubstr("the header was damaged after it was written"));
}

// Other programs change weights and take the metadata along.
TEST(Safetensors, AFileThatWasWrittenAnewIsNotHeldToTheOldSum) {
  const TemporaryFolder folder;
  const os::Path path = folder.path() / "a.safetensors";
  const std::vector<float> values(2, 1.5F);
  ASSERT_TRUE(write_safetensors(
      os::real_files(), path, {view("w", "F32", {2}, values)}, {}));
  const std::string ours = *os::real_files().read(path);
  const size_t sum = ours.find("lockstep.crc32c");
  ASSERT_NE(sum, std::string::npos);
  const std::string theirs =
      R"({"__metadata__":{")" + ours.substr(sum, 35) +
      R"("},"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const uint64_t length = theirs.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += theirs + std::string(8, '\0');
  ASSERT_TRUE(os::real_files().write_atomic(path, file));
  const auto read = SafetensorsFile::open(path);
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_TRUE(read->metadata().empty());
}

TEST(Safetensors, AFileWithoutTensorsIsOne) {
  os::FakeFileSystem files;
  ASSERT_TRUE(write_safetensors(files, "/x", {}, {}));
  EXPECT_EQ(problem_of(*files.read("/x")), "");
}

TEST(Safetensors, WriterRefusesWhatNoReaderWouldTake) {
  os::FakeFileSystem files;
  const std::vector<float> two = {1, 2};
  const auto refused = [&](const std::vector<TensorView>& tensors) {
    auto result = write_safetensors(files, "/x", tensors, {});
    EXPECT_FALSE(result);
    return result ? "" : result.error().to_string();
  };
  EXPECT_THAT(
      refused({view("a", "F32", {3}, two)}), testing::HasSubstr("8 bytes"));
  EXPECT_THAT(
      refused({view("a", "F33", {2}, two)}), testing::HasSubstr("'F33'"));
  EXPECT_THAT(
      refused({view("a", "F32", {2}, two), view("a", "F32", {2}, two)}),
      testing::HasSubstr("twice"));
  EXPECT_THAT(
      refused({view("__metadata__", "F32", {2}, two)}),
      testing::HasSubstr("reserves"));
  EXPECT_THAT(
      refused({view("a\xff", "F32", {2}, two)}), testing::HasSubstr("UTF-8"));
  EXPECT_FALSE(files.exists("/x"));
}

TEST(Safetensors, TheOldFileSurvivesAFullDisk) {
  os::FakeFileSystem files;
  const std::vector<float> old = {1, 2};
  ASSERT_TRUE(
      write_safetensors(files, "/run/last", {view("a", "F32", {2}, old)}, {}));
  const std::string before = *files.read("/run/last");
  files.set_space(1000);
  const std::vector<float> large(1000, 3);
  auto result = write_safetensors(
      files, "/run/last", {view("a", "F32", {1000}, large)}, {});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kNoSpace);
  EXPECT_THAT(result.error().to_string(), testing::HasSubstr("/run/last"));
  EXPECT_EQ(*files.read("/run/last"), before);
}

TEST(Safetensors, TheOldFileSurvivesAFullRealDisk) {
  const TemporaryFolder folder;
  const auto disk = folder.path() / "disk";
  std::filesystem::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=256k") != 0) {
    GTEST_SKIP() << "mounting a small disk needs root";
  }
  const auto path = disk / "last.safetensors";
  const std::vector<float> old(1000, 1);
  EXPECT_TRUE(write_safetensors(
      os::real_files(), path, {view("a", "F32", {1000}, old)}, {}));
  const std::vector<float> large(100'000, 3);
  auto result = write_safetensors(
      os::real_files(), path, {view("a", "F32", {100'000}, large)}, {});
  EXPECT_FALSE(result);
  if (!result) {
    EXPECT_EQ(result.error().code(), ErrorCode::kNoSpace);
  }
  {
    auto file = SafetensorsFile::open(path);
    EXPECT_TRUE(file);
    if (file) {
      EXPECT_EQ(file->find("a")->bytes.size(), 4000U);
    }
  }
  // Nothing else is left on it.
  EXPECT_EQ(os::real_files().list(disk)->size(), 1U);
  EXPECT_EQ(::umount(disk.c_str()), 0);
}

TEST(Safetensors, ReaderNamesTheFile) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "bad.safetensors";
  ASSERT_TRUE(os::real_files().write_atomic(path, std::string_view("short")));
  auto file = SafetensorsFile::open(path);
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(file.error().to_string(), testing::HasSubstr(path.string()));
  auto absent = SafetensorsFile::open(folder.path() / "absent");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ErrorCode::kNotFound);
}

struct Bad {
  const char* header;
  size_t data;
  const char* problem;
};

class SafetensorsHeader : public testing::TestWithParam<Bad> {};

TEST_P(SafetensorsHeader, IsRefused) {
  const Bad& bad = GetParam();
  EXPECT_THAT(
      problem_of(file_of(bad.header, bad.data)),
      testing::HasSubstr(bad.problem));
}

INSTANTIATE_TEST_SUITE_P(
    All,
    SafetensorsHeader,
    testing::Values(
        Bad{"", 0, "does not start"},
        Bad{"[]", 0, "does not start"},
        Bad{"{", 0, "not JSON"},
        Bad{"{} x", 0, "not JSON"},
        Bad{"{\"a\xff\":{}}", 0, "not JSON"},
        Bad{R"({"a":3})", 0, "'a' is a number"},
        Bad{R"({"a":{"dtype":"F32","shape":[1]}})", 4, "lacks its data_off"},
        Bad{R"({"a":{"dtype":"F32","data_offsets":[0,4]}})", 4, "no shape"},
        Bad{R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4, "unknown type"},
        Bad{R"({"a":{"dtype":"F3","shape":[1],"data_offsets":[0,4]}})",
            4,
            "unknown type 'F3'"},
        Bad{R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
            4,
            "a negative number"},
        Bad{R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})",
            4,
            "a fraction"},
        Bad{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})",
            4,
            "lacks its data_offsets"},
        Bad{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})",
            4,
            "more than two"},
        Bad{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",
            4,
            "ends before"},
        Bad{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})",
            4,
            "need 8"},
        Bad{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],)"
            R"("data_offsets":[0,0]}})",
            0,
            "beyond 64 bits"},
        Bad{R"({"a":{"dtype":"U8","shape":[18446744073709551615],)"
            R"("data_offsets":[0,18446744073709551615]}})",
            0,
            "beyond 64 bits"},
        Bad{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
            8,
            "a hole"},
        Bad{R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
            R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
            6,
            "an overlap"},
        Bad{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            3,
            "cut short"},
        Bad{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            5,
            "the file has 5"},
        Bad{R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
            R"("a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
            0,
            "appears twice"},
        Bad{R"({"a":{"dtype":"U8","dtype":"U8"}})", 0, "twice"},
        Bad{R"({"a":{"colour":"red"}})", 0, "unknown field 'colour'"},
        Bad{R"({"a":{"dtype":{"x":1}}})", 0, "an object"},
        Bad{R"({"a":{"shape":[[1]]}})", 0, "an array"},
        Bad{R"({"__metadata__":{"a":1}})", 0, "only strings"},
        Bad{R"({"__metadata__":"x"})", 0, "is a string"}));

TEST(Safetensors, LyingHeaderLengthsAreRefused) {
  std::string file = file_of("{}", 0);
  for (const uint64_t length :
       {uint64_t{3}, uint64_t{99'999'999}, uint64_t{1} << 40, ~uint64_t{0}}) {
    std::memcpy(file.data(), &length, 8);
    EXPECT_NE(problem_of(file), "") << length;
  }
  EXPECT_NE(problem_of(""), "");
}

// A bounded fuzz: cuts and changed bytes of a good file never crash, and what
// is accepted has views inside the file.
TEST(Safetensors, AnyBytesGiveAnAnswer) {
  os::FakeFileSystem files;
  const std::vector<float> some = {1, 2, 3, 4};
  ASSERT_TRUE(write_safetensors(
      files,
      "/x",
      {view("a.weight", "F32", {2, 2}, some), view("b", "F32", {4}, some)},
      {{"k", "v"}}));
  const std::string good = *files.read("/x");
  std::mt19937 random(7);
  int accepted = 0;
  for (int round = 0; round < 5'000; ++round) {
    std::string file = good;
    for (int i = static_cast<int>(random() % 4); i >= 0; --i) {
      file[random() % file.size()] = static_cast<char>(random());
    }
    if (round % 3 == 0) {
      file.resize(random() % (file.size() + 1));
    }
    std::vector<TensorView> tensors;
    Metadata metadata;
    if (parse_safetensors(as_bytes(file), tensors, metadata)) {
      ++accepted;
      size_t sum = 0;
      for (const auto& tensor : tensors) {
        for (const std::byte byte : tensor.bytes) {
          sum += static_cast<size_t>(byte);
        }
      }
      EXPECT_GE(sum, 0U);
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 5'000);
}

}  // namespace
}  // namespace lockstep::record
