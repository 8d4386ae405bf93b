#include "lockstep/record/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace lockstep::record {

namespace {

constexpr double kLegendRow = 18;
constexpr double kLegendMark = 18;
constexpr size_t kLongestName = 40;

// Length of the well-formed UTF-8 sequence at the front; 0 when there is none.
size_t sequence_length(std::string_view text) {
  const auto byte = [text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0U) == 0x80U; };
  const unsigned first = byte(0);
  if (first < 0x80) {
    return 1;
  }
  if (first >= 0xc2 && first < 0xe0) {
    return follows(1) ? 2 : 0;
  }
  if (first >= 0xe0 && first < 0xf0) {
    const bool fits = (first != 0xe0 || byte(1) >= 0xa0) &&
                      (first != 0xed || byte(1) < 0xa0) &&
                      !(first == 0xef && byte(1) == 0xbf && byte(2) >= 0xbe);
    return fits && follows(1) && follows(2) ? 3 : 0;
  }
  if (first >= 0xf0 && first < 0xf5) {
    const bool fits =
        (first != 0xf0 || byte(1) >= 0x90) && (first != 0xf4 || byte(1) < 0x90);
    return fits && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

std::string shortened(const std::string& name) {
  if (name.size() <= kLongestName) {
    return name;
  }
  // Both ends matter: "train/.../loss".
  const size_t half = kLongestName / 2 - 1;
  return name.substr(0, half) + ".." + name.substr(name.size() - half);
}

}  // namespace

std::string_view series_colour(size_t index) {
  static constexpr std::array<std::string_view, 8> kColours = {
      "#0072b2",
      "#d55e00",
      "#009e73",
      "#cc79a7",
      "#e69f00",
      "#56b4e9",
      "#1a1a1a",
      "#8c8c8c",
  };
  return kColours[index % kColours.size()];
}

std::string xml_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    const char c = text[0];
    if (length == 0 || (static_cast<unsigned char>(c) < 0x20 && c != '\t')) {
      out += '?';
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

double text_width(std::string_view text, double size) {
  double width = 0;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xc0U) == 0x80U) {
      continue;
    }
    const bool narrow =
        std::string_view("ijl.,:;'|!() tfr").find(c) != std::string_view::npos;
    const bool wide =
        std::string_view("mwMW@%").find(c) != std::string_view::npos;
    width += narrow ? 0.36 : wide ? 0.95 : (c >= 'A' && c <= 'Z') ? 0.72 : 0.62;
  }
  return width * size;
}

Svg::Svg(int width, int height) {
  text_ = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" )"
      R"(viewBox="0 0 {0} {1}" role="img">
<style>
text {{ font-family: "Helvetica Neue", Arial, "DejaVu Sans", sans-serif; }}
.title {{ font-size: {2}px; font-weight: 600; fill: #1a1a1a; }}
.label {{ font-size: {3}px; fill: #555; }}
.tick {{ font-size: {3}px; fill: #555; }}
.name {{ font-size: {3}px; fill: #1a1a1a; }}
.inside {{ font-size: 11px; fill: #fff; }}
.inside-dark {{ font-size: 11px; fill: #1a1a1a; }}
.empty {{ font-size: 14px; fill: #8c8c8c; }}
.grid {{ stroke: #e4e4e4; stroke-width: 1; }}
.axis {{ stroke: #777; stroke-width: 1; }}
</style>
<rect width="{0}" height="{1}" fill="#fff"/>
)",
      width,
      height,
      kTitleText,
      kSmallText);
}

void Svg::text(
    double x,
    double y,
    std::string_view what,
    std::string_view css_class,
    Anchor anchor) {
  static constexpr std::array kAnchors = {"start", "middle", "end"};
  text_ += fmt::format(
      R"(<text x="{:.1f}" y="{:.1f}" class="{}" text-anchor="{}">{}</text>)"
      "\n",
      x,
      y,
      css_class,
      kAnchors[static_cast<size_t>(anchor)],
      xml_text(what));
}

void Svg::line(
    double x1,
    double y1,
    double x2,
    double y2,
    std::string_view css_class) {
  text_ += fmt::format(
      R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>)"
      "\n",
      x1,
      y1,
      x2,
      y2,
      css_class);
}

void Svg::rectangle(
    double x,
    double y,
    double width,
    double height,
    std::string_view colour,
    std::string_view tooltip) {
  text_ += fmt::format(
      R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill="{}">)",
      x,
      y,
      width,
      height,
      colour);
  if (!tooltip.empty()) {
    text_ += fmt::format("<title>{}</title>", xml_text(tooltip));
  }
  text_ += "</rect>\n";
}

void Svg::circle(double x, double y, double radius, std::string_view colour) {
  text_ += fmt::format(
      R"(<circle cx="{:.1f}" cy="{:.1f}" r="{}" fill="{}"/>)"
      "\n",
      x,
      y,
      radius,
      colour);
}

void Svg::path(
    const std::vector<std::vector<std::pair<double, double>>>& lines,
    const Stroke& stroke,
    std::string_view tooltip) {
  std::string moves;
  for (const auto& points : lines) {
    bool first = true;
    for (const auto& [x, y] : points) {
      moves += fmt::format("{}{:.1f} {:.1f}", first ? "M" : "L", x, y);
      first = false;
    }
  }
  if (moves.empty()) {
    return;
  }
  text_ += fmt::format(
      R"(<path d="{}" fill="none" stroke="{}" stroke-width="{}" )"
      R"(stroke-linejoin="round" stroke-linecap="round")",
      moves,
      stroke.colour,
      stroke.width);
  if (stroke.opacity < 1) {
    text_ += fmt::format(R"( stroke-opacity="{}")", stroke.opacity);
  }
  if (!stroke.dashes.empty()) {
    text_ += fmt::format(R"( stroke-dasharray="{}")", stroke.dashes);
  }
  text_ += fmt::format("><title>{}</title></path>\n", xml_text(tooltip));
}

std::string Svg::finish() && {
  text_ += "</svg>\n";
  return std::move(text_);
}

double Legend::draw(Svg* svg, double x, double y, double width) const {
  if (items.empty()) {
    return 0;
  }
  double at = x;
  double row = y;
  for (const Item& item : items) {
    const std::string name = shortened(item.name);
    const double needs = kLegendMark + 6 + text_width(name, kSmallText) + 14;
    if (at > x && at + needs > x + width) {
      at = x;
      row += kLegendRow;
    }
    if (svg != nullptr) {
      if (boxes) {
        svg->rectangle(at + 4, row - 9.5, 11, 11, item.colour);
      } else {
        svg->path(
            {{{at, row - 4}, {at + kLegendMark, row - 4}}},
            {item.colour, 2.4, 1, item.dashes},
            item.name);
      }
      svg->text(at + kLegendMark + 6, row, name, "name");
    }
    at += needs;
  }
  return row - y + kLegendRow;
}

}  // namespace lockstep::record
