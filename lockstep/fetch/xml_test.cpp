#include "lockstep/fetch/xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::fetch {
namespace {

using ::testing::HasSubstr;

TEST(Xml, TextsAndNumbers) {
  const auto document =
      parse_xml("<?xml version=\"1.0\"?><A xmlns=\"x\"><B> 7 </B><C/></A>");
  ASSERT_TRUE(document) << document.error().to_string();
  EXPECT_EQ(xml_text(**document, "A/B"), "7");
  EXPECT_EQ(xml_text(**document, "A/None"), "");
  EXPECT_EQ(*xml_number(**document, "A/B"), 7U);
  const auto none = xml_number(**document, "A/C");
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), HasSubstr("<A/C>"));
}

TEST(Xml, OneThatIsCutIsNotWhole) {
  const std::string whole = "<A><B>text</B></A>";
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto document = parse_xml(whole.substr(0, size));
    ASSERT_FALSE(document) << size;
    EXPECT_EQ(document.error().code(), ErrorCode::kCorrupt);
  }
}

TEST(Xml, DepthDoesNotMatter) {
  std::string text;
  for (int i = 0; i < 200000; ++i) {
    text += "<a>";
  }
  EXPECT_FALSE(parse_xml(text));
  for (int i = 0; i < 200000; ++i) {
    text += "</a>";
  }
  EXPECT_TRUE(parse_xml(text));
}

TEST(Xml, EntitiesFromOutsideAreNotRead) {
  const auto document = parse_xml(
      "<!DOCTYPE a [<!ENTITY x SYSTEM \"file:///etc/passwd\">]><a>&x;</a>");
  if (document) {
    EXPECT_EQ(xml_text(**document, "a"), "&x;");
  }
}

TEST(Xml, EscapedTextComesBack) {
  const std::string text = "a<b>&\"'c\td";
  const auto document = parse_xml("<k>" + xml_escape(text) + "</k>");
  ASSERT_TRUE(document);
  EXPECT_EQ(xml_text(**document, "k"), text);
}

}  // namespace
}  // namespace lockstep::fetch
