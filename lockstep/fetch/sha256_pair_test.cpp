#include "lockstep/fetch/sha256_pair.h"

#include <gtest/gtest.h>

#include <random>

#include "lockstep/fetch/sigv4.h"

namespace lockstep::fetch {
namespace {

std::string random_bytes(size_t size, uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::string out(size, '\0');
  for (char& byte : out) {
    byte = static_cast<char>(engine());
  }
  return out;
}

TEST(Sha256PairTest, PublishedValues) {
  Sha256Pair pair;
  pair.update("abc", "");
  const auto [first, second] = pair.finish();
  EXPECT_EQ(
      first,
      "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(
      second,
      "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256PairTest, EverySizeAsOpenSsl) {
  const std::string a = random_bytes(300, 1);
  const std::string b = random_bytes(300, 2);
  for (size_t size = 0; size <= a.size(); ++size) {
    const std::string first = a.substr(0, size);
    const std::string second = b.substr(0, a.size() - size);
    Sha256Pair pair;
    pair.update(first, second);
    const auto found = pair.finish();
    ASSERT_EQ(found[0], sha256_hex(first)) << size;
    ASSERT_EQ(found[1], sha256_hex(second)) << size;
  }
}

TEST(Sha256PairTest, PiecesOfDifferentLength) {
  const std::string a = random_bytes(100'000, 3);
  const std::string b = random_bytes(7'001, 4);
  Sha256Pair pair;
  constexpr size_t kPiece = 4096;
  for (size_t at = 0; at < a.size(); at += kPiece) {
    pair.update(
        std::string_view(a).substr(at, kPiece),
        at < b.size() ? std::string_view(b).substr(at, kPiece) : "");
  }
  const auto found = pair.finish();
  EXPECT_EQ(found[0], sha256_hex(a));
  EXPECT_EQ(found[1], sha256_hex(b));
}

}  // namespace
}  // namespace lockstep::fetch
