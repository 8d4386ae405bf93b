#include "lockstep/fetch/archive.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

namespace lockstep::fetch {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string padded(std::string text) {
  text.resize((text.size() + 511) / 512 * 512, '\0');
  return text;
}

std::string entry(
    const std::string& name,
    const std::string& content,
    char type = '0',
    const std::string& prefix = "") {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& text) {
    std::memcpy(header.data() + at, text.data(), text.size());
  };
  put(0, name.substr(0, 100));
  put(100, "0000644");
  put(124, fmt::format("{:011o}", content.size()));
  put(136, "00000000000");
  put(148, "        ");
  header[156] = type;
  put(257,
      std::string(
          "ustar\0"
          "00",
          8));
  put(345, prefix);
  unsigned sum = 0;
  for (const char c : header) {
    sum += static_cast<unsigned char>(c);
  }
  put(148, fmt::format("{:06o}", sum) + '\0');
  return header + padded(content);
}

const std::string kEnd(1024, '\0');

std::string gzip(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, MAX_WBITS + 16, 8, 0), Z_OK);
  std::string out(text.size() + 1024, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

class Archive : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lockstep-archive-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path file(const std::string& content) {
    const auto path = folder_ / "in";
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  Result<std::vector<std::string>> unpack(
      const std::string& content,
      const UnpackOptions& options = {}) {
    return unpack_tar(file(content), folder_ / "out", options);
  }
  std::string error_of(const std::string& content) {
    const auto names = unpack(content);
    return names ? "no error" : names.error().to_string();
  }
  std::string content(const std::string& name) const {
    std::ifstream stream(folder_ / "out" / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }

  fs::path folder_;
};

TEST_F(Archive, UnpacksPlainAndGzipped) {
  const std::string big(3'000'001, 'x');
  const std::string tar = entry("d/", "", '5') + entry("d/a", "hello") +
                          entry("big", big) + entry("empty", "") + kEnd;
  for (const auto& bytes : {tar, gzip(tar)}) {
    const auto names = unpack(bytes);
    ASSERT_TRUE(names) << names.error().to_string();
    EXPECT_THAT(*names, ElementsAre("d/a", "big", "empty"));
    EXPECT_EQ(content("d/a"), "hello");
    EXPECT_EQ(content("big"), big);
    fs::remove_all(folder_ / "out");
  }
}

TEST_F(Archive, LongNames) {
  const std::string longer = std::string(90, 'd') + "/" + std::string(90, 'f');
  const std::string pax = fmt::format(" path={}\n", "p/" + longer);
  const std::string record = std::to_string(pax.size() + 3) + pax;
  const auto names = unpack(
      entry("././@LongLink", longer + '\0', 'L') + entry("short", "gnu") +
      entry("PaxHeader", record, 'x') + entry("short", "pax") +
      entry("file", "ustar", '0', "deep/folder") +
      entry("global", "19 comment=nothing\n", 'g') + kEnd);
  ASSERT_TRUE(names) << names.error().to_string();
  EXPECT_THAT(*names, ElementsAre(longer, "p/" + longer, "deep/folder/file"));
  EXPECT_EQ(content(longer), "gnu");
  EXPECT_EQ(content("p/" + longer), "pax");
}

TEST_F(Archive, StripsLeadingParts) {
  const auto names = unpack(
      entry("package/", "", '5') + entry("package/a/b", "1") + kEnd,
      {.strip = 1});
  ASSERT_TRUE(names);
  EXPECT_THAT(*names, ElementsAre("a/b"));
}

TEST_F(Archive, RefusesWhatLeadsOutside) {
  for (const std::string name :
       {"../evil", "a/../../evil", "/tmp/evil", "..", "a/.."}) {
    EXPECT_THAT(
        error_of(entry(name, "x") + kEnd), HasSubstr("refused '" + name))
        << name;
  }
  EXPECT_FALSE(fs::exists(folder_ / "evil"));
  EXPECT_THAT(
      error_of(entry("link", "", '2') + kEnd), HasSubstr("it is a link"));
  EXPECT_THAT(
      error_of(entry("link", "", '1') + kEnd), HasSubstr("it is a link"));
  EXPECT_THAT(
      error_of(entry("pipe", "", '6') + kEnd),
      HasSubstr("neither a file nor a folder"));
}

TEST_F(Archive, DoesNotWriteThroughALinkThatIsThere) {
  fs::create_directories(folder_ / "out");
  std::ofstream(folder_ / "victim") << "safe";
  fs::create_symlink(folder_ / "victim", folder_ / "out/a");
  EXPECT_THAT(error_of(entry("a", "evil") + kEnd), HasSubstr("cannot write"));
  std::ifstream stream(folder_ / "victim");
  std::string text;
  stream >> text;
  EXPECT_EQ(text, "safe");
}

TEST_F(Archive, RefusesMoreThanAllowed) {
  const auto names =
      unpack(entry("a", std::string(600, 'x')) + kEnd, {.max_bytes = 500});
  ASSERT_FALSE(names);
  EXPECT_THAT(names.error().to_string(), HasSubstr("would be unpacked"));
}

TEST_F(Archive, TruncatedAtEveryPlaceIsNamed) {
  const std::string tar = entry("a", "hello") + entry("b", "world") + kEnd;
  const std::string packed = gzip(tar);
  for (size_t length = 0; length + 1024 <= tar.size(); length += 100) {
    const auto error = error_of(tar.substr(0, length));
    EXPECT_THAT(error, HasSubstr("truncated")) << length;
    EXPECT_THAT(error, HasSubstr((folder_ / "in").string()));
  }
  for (size_t length = 2; length < packed.size(); ++length) {
    EXPECT_THAT(error_of(packed.substr(0, length)), HasSubstr("truncated"))
        << length;
  }
}

TEST_F(Archive, DamageIsNamed) {
  std::string tar = entry("a", "hello") + entry("b", "world") + kEnd;
  tar[1024 + 3] ^= 1;
  EXPECT_THAT(error_of(tar), HasSubstr("a header is damaged after a"));
  EXPECT_THAT(error_of(std::string(2048, 'x')), HasSubstr("not a tar"));
  std::string packed = gzip(entry("a", "hello") + kEnd);
  packed[packed.size() - 6] ^= 1;  // gzip's own checksum
  const auto names = unpack(packed);
  ASSERT_FALSE(names);
  EXPECT_EQ(names.error().code(), ErrorCode::kCorrupt);
}

TEST_F(Archive, RandomDamageNeverCrashes) {
  const std::string tar = entry("d/a", "hello") +
                          entry("PaxHeader", "12 path=d/b\n", 'x') +
                          entry("x", "world") + kEnd;
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    std::string bytes = tar;
    for (int i = 0; i < 3; ++i) {
      bytes[random() % (bytes.size() - 1024)] = static_cast<char>(random());
    }
    const auto names = unpack(bytes);
    if (!names) {
      EXPECT_FALSE(names.error().to_string().empty());
    }
  }
}

TEST_F(Archive, GunzipWritesAndNamesFaults) {
  const std::string text = "some text\n";
  const auto to = folder_ / "plain";
  std::ofstream(to) << "old content that is longer";
  const auto size = gunzip_file(file(gzip(text)), to);
  ASSERT_TRUE(size) << size.error().to_string();
  EXPECT_EQ(*size, text.size());
  EXPECT_EQ(fs::file_size(to), text.size());
  // Members one after the other are one content, as gzip says.
  EXPECT_EQ(*gunzip_file(file(gzip(text) + gzip(text)), to), 2 * text.size());
  EXPECT_THAT(
      gunzip_file(file("plain"), to).error().to_string(),
      HasSubstr("it is not gzip"));
  EXPECT_THAT(
      gunzip_file(file(gzip(text).substr(0, 15)), to).error().to_string(),
      HasSubstr("truncated"));
  EXPECT_EQ(
      gunzip_file(folder_ / "absent", to).error().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace lockstep::fetch
