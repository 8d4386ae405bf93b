#pragma once

// The pen behind the plots: an SVG document that grows by shapes, with one
// look for all. Any text is made fit for XML. Private to record/.

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lockstep::record {

inline constexpr double kSmallText = 12;
inline constexpr double kTitleText = 15;

// Colours that differ for every kind of sight (Okabe and Ito); the yellow one,
// too pale on white, is a grey here.
std::string_view series_colour(size_t index);

// Escaped; bytes that XML does not allow become '?'.
std::string xml_text(std::string_view text);

// A little more than it takes in the usual fonts.
double text_width(std::string_view text, double size);

enum class Anchor { kStart, kMiddle, kEnd };

class Svg {
 public:
  Svg(int width, int height);
  // y is the base line.
  void text(
      double x,
      double y,
      std::string_view what,
      std::string_view css_class,
      Anchor anchor = Anchor::kStart);
  void
  line(double x1, double y1, double x2, double y2, std::string_view css_class);
  void rectangle(
      double x,
      double y,
      double width,
      double height,
      std::string_view colour,
      std::string_view tooltip = "");
  void circle(double x, double y, double radius, std::string_view colour);
  // One path of several lines.
  struct Stroke {
    std::string_view colour;
    double width = 1.8;
    double opacity = 1;
    std::string_view dashes;  // empty: solid
  };
  void path(
      const std::vector<std::vector<std::pair<double, double>>>& lines,
      const Stroke& stroke,
      std::string_view tooltip);
  std::string finish() &&;

 private:
  std::string text_;
};

// Rows of colour and name, as many as the width asks for.
struct Legend {
  struct Item {
    std::string name;
    std::string_view colour;
    std::string_view dashes;
  };
  std::vector<Item> items;
  bool boxes = false;  // boxes for bars, strokes for lines
  // Draws from the base line `y` down (not when `svg` is null); the height.
  double draw(Svg* svg, double x, double y, double width) const;
};

}  // namespace lockstep::record
