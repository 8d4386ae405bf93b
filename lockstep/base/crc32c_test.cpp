#include "lockstep/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>

namespace lockstep {
namespace {

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
}

TEST(Crc32c, PiecesOneAfterTheOther) {
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text += static_cast<char>(i * 7);
  }
  for (const size_t cut : {0UL, 1UL, 7UL, 8UL, 500UL, 999UL, 1000UL}) {
    const std::string first = text.substr(0, cut);
    const std::string second = text.substr(cut);
    EXPECT_EQ(crc32c(second, crc32c(first)), crc32c(text)) << cut;
    EXPECT_EQ(
        crc32c_join(crc32c(first), crc32c(second), second.size()), crc32c(text))
        << cut;
  }
}

TEST(Crc32c, LargePiecesAreReadInThirds) {
  std::string text;
  for (uint32_t i = 0; i < 200000; ++i) {
    text += static_cast<char>(i * i >> 3);
  }
  for (const size_t size : {65535UL, 65536UL, 65537UL, 98304UL, 199999UL}) {
    uint32_t one_by_one = 0;
    for (size_t i = 0; i < size; ++i) {
      one_by_one = crc32c({&text[i], 1}, one_by_one);
    }
    EXPECT_EQ(crc32c({text.data(), size}), one_by_one) << size;
    EXPECT_EQ(
        crc32c({text.data() + 1, size}, 7),
        crc32c(
            text.substr(1 + 100, size - 100), crc32c(text.substr(1, 100), 7)))
        << size;
  }
}

TEST(Crc32c, JoinsLargePieces) {
  const std::string a(3 << 20, 'a');
  const std::string b((5 << 20) + 3, 'b');
  EXPECT_EQ(crc32c_join(crc32c(a), crc32c(b), b.size()), crc32c(a + b));
}

}  // namespace
}  // namespace lockstep
