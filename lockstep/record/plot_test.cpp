#include "lockstep/record/plot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "lockstep/record/axis.h"
#include "lockstep/record/svg.h"

namespace lockstep::record {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

size_t count(const std::string& text, const std::string& what) {
  size_t found = 0;
  for (size_t at = text.find(what); at != std::string::npos;
       at = text.find(what, at + 1)) {
    ++found;
  }
  return found;
}

TEST(Axis, TicksAreRound) {
  const Axis axis = linear_axis(0.3, 9.7, 5, true);
  EXPECT_THAT(axis.labels, ElementsAre("0", "2", "4", "6", "8", "10"));
  EXPECT_EQ(axis.low, 0);
  EXPECT_EQ(axis.high, 10);
  EXPECT_EQ(axis.position(5), 0.5);
}

TEST(Axis, LabelsHaveTheDigitsTheyNeed) {
  EXPECT_THAT(
      linear_axis(0, 1, 4, true).labels,
      ElementsAre("0", "0.25", "0.50", "0.75", "1.00"));
  EXPECT_THAT(
      linear_axis(0, 60'000, 3, true).labels,
      ElementsAre("0", "20k", "40k", "60k"));
  EXPECT_THAT(
      linear_axis(0, 2e-4, 2, true).labels,
      ElementsAre("0", "0.0001", "0.0002"));
  EXPECT_THAT(linear_axis(-1, 1, 2, true).labels, ElementsAre("-1", "0", "1"));
}

TEST(Axis, ARangeWithoutExtentGetsOne) {
  for (const double value : {0.0, 5.0, -3.0, 1e-20, 1e20}) {
    const Axis axis = linear_axis(value, value, 4, true);
    EXPECT_LT(axis.low, axis.high) << value;
    EXPECT_LE(axis.low, value);
    EXPECT_GE(axis.high, value);
    EXPECT_GE(axis.ticks.size(), 2U) << value;
  }
}

// Each had ticks without end, or a range that was lost in rounding.
TEST(Axis, EveryNumberHasAFewTicks) {
  for (const double value :
       {5e-324,
        -5e-324,
        1e-310,
        1e9,
        9007199254740991.0,
        9007199254740992.0,
        1.7e18,
        -1.7e18,
        9223372036854775807.0,
        1e300,
        -1e300}) {
    for (const bool widen : {false, true}) {
      for (const bool whole : {false, true}) {
        const Axis axis = linear_axis(value, value, 8, widen, whole);
        EXPECT_LT(axis.low, axis.high) << value;
        EXPECT_GE(axis.position(value), -1e-9) << value;
        EXPECT_LE(axis.position(value), 1 + 1e-9) << value;
        EXPECT_GE(axis.ticks.size(), 1U) << value;
        EXPECT_LE(axis.ticks.size(), 30U) << value;
        EXPECT_EQ(axis.labels.size(), axis.ticks.size()) << value;
      }
    }
  }
}

TEST(Axis, ANarrowRangeOfLargeNumbersHasAFewTicks) {
  struct Ends {
    double low, high;
  };
  for (const auto& [low, high] :
       {Ends{9007199254740990.0, 9007199254740992.0},
        Ends{1.7e18, 1.7e18 + 256},
        Ends{1.7e18, 1.7e18 + 2e9},
        Ends{1.7e18, 1.7e18 + 3.6e12},
        Ends{-1e300, 1e300},
        Ends{1e-320, 2e-320}}) {
    const Axis axis = linear_axis(low, high, 8, false, true);
    EXPECT_LT(axis.low, axis.high) << low;
    EXPECT_GE(axis.ticks.size(), 2U) << low;
    EXPECT_LE(axis.ticks.size(), 30U) << low;
    const std::set<std::string> labels(axis.labels.begin(), axis.labels.end());
    EXPECT_EQ(labels.size(), axis.ticks.size()) << low;
  }
}

TEST(Axis, LogRangesOfAnyWidthHaveAnExtent) {
  for (const double high : {3.0, 3 * (1 + 1e-12), 3 * (1 + 1e-8), 1e299}) {
    const Axis axis = log_axis(3, high);
    EXPECT_LT(axis.low, axis.high) << high;
    EXPECT_TRUE(std::isfinite(axis.position(3))) << high;
  }
  const Axis widest = log_axis(1e-299, 1e299);
  EXPECT_GE(widest.ticks.size(), 2U);
  EXPECT_LE(widest.ticks.size(), 30U);
  EXPECT_NEAR(widest.position(1), 0.5, 0.1);
}

TEST(Axis, LogTicksArePowersOfTen) {
  const Axis axis = log_axis(0.02, 30'000);
  EXPECT_THAT(
      axis.labels,
      ElementsAre("0.01", "0.1", "1", "10", "100", "1000", "10000", "1e+05"));
  EXPECT_NEAR(axis.position(axis.low), 0, 1e-12);
  EXPECT_NEAR(axis.position(axis.high), 1, 1e-12);
  EXPECT_THAT(
      log_axis(1, 60).labels,
      ElementsAre("1", "2", "5", "10", "20", "50", "100"));
}

TEST(Plot, ShowsTitleLabelsAndNames) {
  const std::string svg = plot_svg(
      {{"train", {1, 2, 3}, {1, 2, 3}}, {"test", {1, 2, 3}, {3, 2, 1}}},
      {.title = "Loss & <more>", .x_label = "step", .y_label = "nats"});
  EXPECT_THAT(svg, HasSubstr("Loss &amp; &lt;more&gt;"));
  EXPECT_THAT(svg, HasSubstr(">step</text>"));
  EXPECT_THAT(svg, HasSubstr(">nats</text>"));
  EXPECT_THAT(svg, HasSubstr(">train</text>"));
  EXPECT_THAT(svg, HasSubstr(">test</text>"));
}

TEST(Plot, ManyPointsMakeASmallFile) {
  Series series{"x", {}, {}};
  for (int i = 0; i < 200'000; ++i) {
    series.x.push_back(i);
    series.y.push_back(std::sin(i * 0.01));
  }
  series.y[123'456] = 40;  // the spike must stay
  const std::string svg = plot_svg({series}, {.title = "t"});
  EXPECT_LT(svg.size(), 80'000U);
  EXPECT_THAT(svg, HasSubstr(">40</text>"));
  // The highest point of the plot: the base line of the label row plus 23.
  Series flat = series;
  flat.y[123'456] = 0;
  EXPECT_NE(svg, plot_svg({flat}, {.title = "t"}));
}

TEST(Plot, NanBreaksTheLine) {
  const double nan = std::nan("");
  const std::string svg =
      plot_svg({{"x", {0, 1, 2, 3, 4}, {1, 2, nan, 2, 1}}}, {.title = "t"});
  const size_t from = svg.find("<path d=\"") + 9;
  const std::string moves = svg.substr(from, svg.find('"', from) - from);
  EXPECT_EQ(count(moves, "M"), 2U);
  EXPECT_EQ(count(moves, "L"), 2U);
}

TEST(Plot, APointAloneIsSeen) {
  Series series{"x", {}, {}};
  for (int i = 0; i < 101; ++i) {
    series.x.push_back(i);
    series.y.push_back(i == 50 ? 1.0 : std::nan(""));
  }
  EXPECT_EQ(count(plot_svg({series}, {}), "<circle"), 1U);
}

TEST(Plot, AnyNumbersGiveAPicture) {
  const double inf = std::numeric_limits<double>::infinity();
  const double max = std::numeric_limits<double>::max();
  for (const auto& y : std::vector<std::vector<double>>{
           {},
           {0},
           {5, 5, 5},
           {inf, -inf},
           {max, -max, 0},
           {1e-320, 2e-320},
           {-1, 0, 1},
           {1, 2, 3, 4}}) {
    for (const bool log_y : {false, true}) {
      const std::string svg = plot_svg(
          {{"x", {1, 2, 3}, y}},
          {.title = "t", .log_y = log_y, .smooth = true});
      EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
      EXPECT_THAT(svg, Not(HasSubstr("nan")));
      EXPECT_THAT(svg, Not(HasSubstr("inf")));
    }
  }
  EXPECT_THAT(plot_svg({}, {}), HasSubstr("no data"));
}

TEST(Plot, AnyStepGivesAPicture) {
  for (const double step :
       {9007199254740991.0, 1763193012e9, 9223372036854775807.0, 1e299}) {
    for (const double value : {0.5, 5e-324, 9e299}) {
      for (const bool log_y : {false, true}) {
        const std::string svg =
            plot_svg({{"x", {step}, {value}}}, {.title = "t", .log_y = log_y});
        EXPECT_LT(svg.size(), 20'000U) << step;
        EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
        EXPECT_THAT(svg, Not(HasSubstr("nan")));
        EXPECT_THAT(svg, Not(HasSubstr("inf")));
      }
    }
  }
}

TEST(Plot, ANumberThatIsNotDrawnDoesNotBendTheMean) {
  Series series{"x", {}, {}};
  for (int i = 0; i < 100; ++i) {
    series.x.push_back(i);
    series.y.push_back(1);
  }
  series.y[20] = 1.7e308;
  const std::string svg = plot_svg({series}, {.smooth = true});
  series.y[20] = std::nan("");
  EXPECT_EQ(svg, plot_svg({series}, {.smooth = true}));
}

TEST(Plot, NineSeriesDiffer) {
  std::vector<Series> series;
  for (int i = 0; i < 9; ++i) {
    series.push_back({"s", {0, 1}, {0, 1}});
  }
  EXPECT_THAT(plot_svg(series, {}), HasSubstr("stroke-dasharray"));
  series.pop_back();
  EXPECT_THAT(plot_svg(series, {}), Not(HasSubstr("stroke-dasharray")));
}

TEST(Plot, BarsStandAtTheirPoints) {
  Series series{"speed", {1, 2, 4}, {1, 2, 3}};
  series.low = {1, 1.5, 2};
  series.high = {1, 2.5, 9};
  const std::string svg = plot_svg({series}, {});
  // Two strokes with two feet each; the first point has no extent.
  EXPECT_EQ(count(svg, "stroke-width=\"1.2\""), 1U);
  const size_t first = svg.find("<path");
  const size_t end = svg.find("fill=", first);
  EXPECT_EQ(count(svg.substr(first, end - first), "M"), 6U);
  // The axis makes room for the bars, not only for the points.
  EXPECT_THAT(svg, HasSubstr(">8</text>"));
  series.low = {std::nan(""), 1};
  EXPECT_THAT(plot_svg({series}, {}), HasSubstr("</svg>"));
}

TEST(Plot, AReferenceIsGreyAndTakesNoColour) {
  Series ideal{"ideal", {1, 8}, {1, 8}};
  ideal.reference = true;
  const std::string svg = plot_svg({ideal, {"ours", {1, 8}, {1, 5}}}, {});
  EXPECT_THAT(svg, HasSubstr(">ideal</text>"));
  EXPECT_THAT(svg, HasSubstr(std::string(series_colour(0))));
  EXPECT_THAT(svg, Not(HasSubstr(std::string(series_colour(1)))));
  EXPECT_EQ(count(svg, "<circle"), 2U);
}

TEST(Bars, SharesAreWritten) {
  Bars bars;
  bars.parts = {"compute", "wait"};
  bars.rows = {{"rank 0", {3, 1}}, {"rank 1", {4, 0}}};
  bars.title = "Split";
  const std::string svg = bars_svg(bars);
  EXPECT_THAT(svg, HasSubstr(">75%</text>"));
  EXPECT_THAT(svg, HasSubstr(">25%</text>"));
  EXPECT_THAT(svg, HasSubstr(">100%</text>"));
  EXPECT_THAT(svg, HasSubstr(">rank 1</text>"));
}

TEST(Bars, OnePartHasItsValueWritten) {
  Bars bars;
  bars.parts = {"samples"};
  bars.rows = {
      {"a", {3819123}}, {"b", {2999700}}, {"c", {999600}}, {"d", {950}}};
  const std::string svg = bars_svg(bars);
  EXPECT_THAT(svg, HasSubstr(">3.82M<"));
  EXPECT_THAT(svg, HasSubstr(">3M<"));
  EXPECT_THAT(svg, HasSubstr(">1M<"));
  EXPECT_THAT(svg, Not(HasSubstr(">100%<")));
}

TEST(Bars, OddInputGivesAPicture) {
  Bars bars;
  EXPECT_THAT(bars_svg(bars), HasSubstr("no data"));
  bars.parts = {"a"};
  bars.rows = {{"x", {}}, {"y", {std::nan("")}}, {"z", {-1}}};
  EXPECT_THAT(bars_svg(bars), HasSubstr("no data"));
  for (const double value : {5e-324, 1e300}) {
    bars.rows = {{"x", {value}}};
    EXPECT_LT(bars_svg(bars).size(), 20'000U) << value;
    EXPECT_THAT(bars_svg(bars), Not(HasSubstr("nan")));
  }
  bars.rows.assign(1000, {"x", {1}});
  EXPECT_THAT(bars_svg(bars), HasSubstr("first 128 of 1000"));
}

TEST(Svg, TextIsFitForXml) {
  EXPECT_EQ(xml_text("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
  EXPECT_EQ(xml_text(std::string("a\0b\x1b", 4)), "a?b?");
  EXPECT_EQ(xml_text("\xc3\xa4 \xe2\x82\xac"), "\xc3\xa4 \xe2\x82\xac");
  EXPECT_EQ(xml_text("\xff\xc3"), "??");
  EXPECT_EQ(xml_text("\xed\xa0\x80"), "???");  // half a surrogate pair
}

}  // namespace
}  // namespace lockstep::record
