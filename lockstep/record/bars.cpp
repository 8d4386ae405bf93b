#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/record/axis.h"
#include "lockstep/record/plot.h"
#include "lockstep/record/svg.h"

namespace lockstep::record {

namespace {

constexpr double kMargin = 16;
constexpr double kRowHeight = 26;
constexpr double kThinRowHeight = 12;
constexpr size_t kThinAbove = 16;
constexpr size_t kMostRows = 128;  // more are cut, and the picture says so

double usable(const std::vector<double>& values, size_t part) {
  const double value = part < values.size() ? values[part] : 0;
  return std::isfinite(value) && value > 0 ? std::min(value, 1e300) : 0;
}

double sum_of(const Bars& bars, const Bars::Row& row) {
  double sum = 0;
  for (size_t part = 0; part < bars.parts.size(); ++part) {
    sum += usable(row.values, part);
  }
  return sum;
}

// 3 digits: 950, 12.3k, 3.82M.
std::string short_number(double value) {
  constexpr double kThousand = 1000;
  std::string_view unit;
  for (const std::string_view next : {"k", "M", "G", "T"}) {
    // From where 3 digits would round up to the next unit.
    if (value < kThousand - .5) {
      break;
    }
    value /= kThousand;
    unit = next;
  }
  return fmt::format("{:.3g}{}", value, unit);
}

}  // namespace

std::string bars_svg(const Bars& bars) {
  const int width = std::max(bars.width, 200);
  const size_t count = std::min(bars.rows.size(), kMostRows);
  const bool thin = count > kThinAbove;
  const double row_height = thin ? kThinRowHeight : kRowHeight;
  double most = 0;
  double label_width = 0;
  for (size_t i = 0; i < count; ++i) {
    most = std::max(most, sum_of(bars, bars.rows[i]));
    label_width =
        std::max(label_width, text_width(bars.rows[i].label, kSmallText));
  }
  Legend legend;
  legend.boxes = true;
  for (size_t part = 0; part < bars.parts.size(); ++part) {
    legend.items.push_back({bars.parts[part], series_colour(part), ""});
  }
  const double legend_top = kMargin + kTitleText + 19;
  const double top =
      legend_top - 5 +
      legend.draw(nullptr, kMargin, legend_top, width - 2 * kMargin);
  const double bottom =
      top + std::max(row_height * static_cast<double>(count), 40.0);
  Svg svg(width, static_cast<int>(bottom + 54));
  const std::string title =
      count < bars.rows.size()
          ? fmt::format(
                "{} (first {} of {})", bars.title, count, bars.rows.size())
          : bars.title;
  svg.text(kMargin, kMargin + kTitleText - 2, title, "title");
  if (most <= 0) {
    svg.text(width / 2.0, top + 24, "no data", "empty", Anchor::kMiddle);
    return std::move(svg).finish();
  }
  legend.draw(&svg, kMargin, legend_top, width - 2 * kMargin);
  const double left = kMargin + std::min(label_width, width * 0.4) + 10;
  const double right = width - kMargin - 10;
  const Axis axis =
      linear_axis(0, most, static_cast<int>((right - left) / 80), false);
  for (size_t i = 0; i < axis.ticks.size(); ++i) {
    const double x = left + (right - left) * axis.position(axis.ticks[i]);
    svg.line(x, top, x, bottom, "grid");
    svg.text(x, bottom + 18, axis.labels[i], "tick", Anchor::kMiddle);
  }
  svg.text(
      (left + right) / 2, bottom + 38, bars.x_label, "label", Anchor::kMiddle);
  for (size_t i = 0; i < count; ++i) {
    const auto& row = bars.rows[i];
    const double y = top + row_height * static_cast<double>(i);
    // Thin rows have no room for every label.
    if (!thin || i % 2 == 0) {
      svg.text(
          left - 8, y + row_height / 2 + 4, row.label, "tick", Anchor::kEnd);
    }
    const double sum = sum_of(bars, row);
    double x = left;
    for (size_t part = 0; part < bars.parts.size(); ++part) {
      const double value = usable(row.values, part);
      const double extent = (right - left) * value / axis.high;
      const std::string share =
          fmt::format("{:.0f}%", sum > 0 ? 100 * value / sum : 0);
      if (value > 0) {
        svg.rectangle(
            x,
            y + 2,
            extent,
            row_height - 4,
            series_colour(part),
            fmt::format(
                "{}: {} {:.4g} ({})",
                row.label,
                bars.parts[part],
                value,
                share));
      }
      // One part is all of it: its value says more.
      const std::string inside =
          bars.parts.size() == 1 ? short_number(value) : share;
      if (!thin && extent > text_width(inside, 11) + 6) {
        svg.text(
            x + extent / 2,
            y + row_height / 2 + 4,
            inside,
            part % 8 >= 3 && part % 8 <= 5 ? "inside-dark" : "inside",
            Anchor::kMiddle);
      }
      x += extent;
    }
  }
  svg.line(left, top, left, bottom, "axis");
  return std::move(svg).finish();
}

}  // namespace lockstep::record
