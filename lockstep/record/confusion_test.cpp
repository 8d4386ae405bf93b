#include "lockstep/record/confusion.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::record {
namespace {

// 5 cats (3 right, 2 taken for dogs), 4 dogs (all right), no bird at all.
Confusion animals() {
  return {{"cat", "dog", "bird, small"}, {3, 2, 0, 0, 4, 0, 0, 0, 0}};
}

TEST(Confusion, RowsHavePrecisionAndRecall) {
  const auto rows = class_rows(animals());
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].count, 5);
  EXPECT_EQ(rows[0].predicted, 3);
  EXPECT_DOUBLE_EQ(rows[0].precision, 1);
  EXPECT_DOUBLE_EQ(rows[0].recall, .6);
  EXPECT_DOUBLE_EQ(rows[0].f1, .75);
  EXPECT_DOUBLE_EQ(rows[1].precision, 4. / 6);
  EXPECT_DOUBLE_EQ(rows[1].recall, 1);
  EXPECT_TRUE(std::isnan(rows[2].precision));
  EXPECT_TRUE(std::isnan(rows[2].recall));
}

TEST(Confusion, TextsSayTheSame) {
  EXPECT_EQ(
      confusion_csv(animals()),
      "truth\\predicted,cat,dog,\"bird, small\"\n"
      "cat,3,2,0\ndog,0,4,0\n\"bird, small\",0,0,0\n");
  EXPECT_EQ(
      classes_csv(animals()),
      "class,count,predicted,right,precision,recall,f1\n"
      "cat,5,3,3,1.000000,0.600000,0.750000\n"
      "dog,4,6,4,0.666667,1.000000,0.800000\n"
      "\"bird, small\",0,0,0,,,\n");
  const std::string table = class_table(animals());
  EXPECT_NE(table.find("60.0%"), std::string::npos) << table;
  EXPECT_NE(
      table.find("most frequent mistakes: cat taken for dog: 2\n"),
      std::string::npos)
      << table;
}

TEST(Confusion, ThePictureIsDarkerWhereMoreAre) {
  const auto image = confusion_image(animals());
  ASSERT_EQ(
      image.pixels.size(),
      static_cast<size_t>(image.width) * static_cast<size_t>(image.height) * 3);
  const int cell = 46;
  const int left = image.width - 10 - 3 * cell;
  const int top = image.height - 10 - 3 * cell;
  const auto red = [&](int row, int column) {
    const auto y = static_cast<size_t>(top + row * cell + 2);
    const auto x = static_cast<size_t>(left + column * cell + 2);
    return image.pixels[(y * static_cast<size_t>(image.width) + x) * 3];
  };
  EXPECT_LT(red(1, 1), red(0, 0)) << "all of them against three of five";
  EXPECT_LT(red(0, 0), red(0, 1));
  EXPECT_LT(red(0, 1), red(0, 2));
  EXPECT_TRUE(encode_png(image));
}

TEST(Confusion, ManyClassesStillMakeAPicture) {
  Confusion many;
  for (int i = 0; i < 700; ++i) {
    many.classes.push_back("class " + std::to_string(i));
  }
  many.counts.assign(700 * 700, 1);
  const auto image = confusion_image(many);
  EXPECT_GT(image.width, 1400);
  EXPECT_LT(image.width, 1500);
  const auto none = confusion_image({});
  EXPECT_TRUE(encode_png(none));
}

}  // namespace
}  // namespace lockstep::record
