#include "lockstep/fetch/checksum.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace lockstep::fetch {
namespace {

using ::testing::HasSubstr;

TEST(Checksum, KnownDigests) {
  Digest sha(ChecksumKind::kSha256);
  sha.update("a");
  sha.update("bc");
  EXPECT_EQ(
      sha.finish(),
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Digest md5(ChecksumKind::kMd5);
  EXPECT_EQ(md5.finish(), "d41d8cd98f00b204e9800998ecf8427e");
}

TEST(Checksum, ParsesWhatItPrints) {
  const std::string text = "md5:d41d8cd98f00b204e9800998ecf8427e";
  const auto parsed = parse_checksum(text);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->to_string(), text);
  for (const std::string bad :
       {"",
        "md5:",
        "md5:D41D8CD98F00B204E9800998ECF8427E",
        "sha256:00",
        "d41d8cd98f00b204e9800998ecf8427e",
        "crc:00"}) {
    const auto failed = parse_checksum(bad);
    ASSERT_FALSE(failed) << bad;
    EXPECT_THAT(failed.error().to_string(), HasSubstr("write it as sha256:"));
  }
}

TEST(Checksum, VerifyNamesTheFileAndBothDigests) {
  char folder[] = "/tmp/lockstep-checksum-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const os::Path path = os::Path(folder) / "a";
  std::ofstream(path) << "abc";
  const std::string right =
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  EXPECT_TRUE(verify_file(path, {ChecksumKind::kSha256, right}));
  const auto wrong =
      verify_file(path, {ChecksumKind::kSha256, std::string(64, '0')});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), ErrorCode::kCorrupt);
  EXPECT_THAT(wrong.error().to_string(), HasSubstr(path.string()));
  EXPECT_THAT(wrong.error().to_string(), HasSubstr(right));
  const auto absent =
      verify_file(os::Path(folder) / "b", {ChecksumKind::kSha256, right});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ErrorCode::kNotFound);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace lockstep::fetch
