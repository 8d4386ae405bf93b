#include "lockstep/forest/utf8.h"

#include <gtest/gtest.h>

namespace lockstep::forest {
namespace {

TEST(Utf8, IsWhatRfc3629Has) {
  for (const char* good :
       {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8c\xb2"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad :
       {"\xe9t\xe9",            // Latin-1
        "\xc3",                 // cut off
        "\xe2\x82",             // cut off
        "\x80",                 // a tail alone
        "\xc0\xaf",             // longer than it need be
        "\xe0\x80\xaf",         // longer than it need be
        "\xed\xa0\x80",         // half of a pair of UTF-16
        "\xf4\x90\x80\x80"}) {  // beyond Unicode
    EXPECT_FALSE(is_utf8(bad)) << printable(bad);
  }
}

TEST(Utf8, PrintableShowsTheBytesThatATerminalDoesNot) {
  EXPECT_EQ(
      printable(std::string_view("a\0\n\xe9 \xc3\xa9", 7)),
      "a\\x00\\x0a\\xe9 \xc3\xa9");
}

}  // namespace
}  // namespace lockstep::forest
