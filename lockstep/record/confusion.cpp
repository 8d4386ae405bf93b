#include "lockstep/record/confusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "lockstep/record/pixel_text.h"

namespace lockstep::record {
namespace {

constexpr int kMargin = 10;
constexpr int kLargestCell = 46;
constexpr int kSmallestCell = 2;
constexpr int kWanted = 900;  // pixels of all cells together
constexpr size_t kLongestName = 14;
constexpr Colour kInk = {34, 34, 34};
constexpr Colour kPaper = {255, 255, 255};

double ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole)
                   : std::numeric_limits<double>::quiet_NaN();
}

std::string percent(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.1f}%", 100 * value);
}

std::string number(double value) {
  return std::isnan(value) ? "" : fmt::format("{:.6f}", value);
}

std::string quoted(std::string_view text) {
  if (text.find_first_of(",\"\n\r") == std::string_view::npos) {
    return std::string(text);
  }
  std::string result = "\"";
  for (const char c : text) {
    result += c == '"' ? "\"\"" : std::string(1, c);
  }
  result += '"';
  return result;
}

// From white to a dark blue.
Colour shade(double share) {
  const auto mix = [share](int from, int to) {
    return static_cast<uint8_t>(std::lround(from + (to - from) * share));
  };
  return {mix(255, 8), mix(255, 48), mix(255, 107)};
}

}  // namespace

std::vector<ClassRow> class_rows(const Confusion& confusion) {
  const size_t size = confusion.classes.size();
  std::vector<ClassRow> rows;
  for (size_t i = 0; i < size; ++i) {
    ClassRow row;
    row.name = confusion.classes[i];
    for (size_t j = 0; j < size; ++j) {
      row.count += confusion.at(i, j);
      row.predicted += confusion.at(j, i);
    }
    row.right = confusion.at(i, i);
    row.precision = ratio(row.right, row.predicted);
    row.recall = ratio(row.right, row.count);
    row.f1 = ratio(2 * row.right, row.count + row.predicted);
    rows.push_back(row);
  }
  return rows;
}

std::string class_table(const Confusion& confusion) {
  size_t width = 5;
  for (const auto& name : confusion.classes) {
    width = std::max(width, name.size());
  }
  std::string text = fmt::format(
      "{:<{}}  {:>7}  {:>9}  {:>7}  {:>7}\n",
      "class",
      width,
      "count",
      "precision",
      "recall",
      "f1");
  for (const auto& row : class_rows(confusion)) {
    text += fmt::format(
        "{:<{}}  {:>7}  {:>9}  {:>7}  {:>7}\n",
        row.name,
        width,
        row.count,
        percent(row.precision),
        percent(row.recall),
        percent(row.f1));
  }
  struct Mistake {
    int64_t count;
    size_t truth;
    size_t predicted;
  };
  std::vector<Mistake> mistakes;
  const size_t size = confusion.classes.size();
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < size; ++j) {
      if (i != j && confusion.at(i, j) > 0) {
        mistakes.push_back({confusion.at(i, j), i, j});
      }
    }
  }
  const size_t shown = std::min<size_t>(3, mistakes.size());
  std::partial_sort(
      mistakes.begin(),
      mistakes.begin() + static_cast<std::ptrdiff_t>(shown),
      mistakes.end(),
      [](const Mistake& a, const Mistake& b) { return a.count > b.count; });
  for (size_t i = 0; i < shown; ++i) {
    text += fmt::format(
        "{}{} taken for {}: {}",
        i == 0 ? "most frequent mistakes: " : "; ",
        confusion.classes[mistakes[i].truth],
        confusion.classes[mistakes[i].predicted],
        mistakes[i].count);
  }
  return shown > 0 ? text + "\n" : text;
}

std::string classes_csv(const Confusion& confusion) {
  std::string text = "class,count,predicted,right,precision,recall,f1\n";
  for (const auto& row : class_rows(confusion)) {
    text += fmt::format(
        "{},{},{},{},{},{},{}\n",
        quoted(row.name),
        row.count,
        row.predicted,
        row.right,
        number(row.precision),
        number(row.recall),
        number(row.f1));
  }
  return text;
}

std::string confusion_csv(const Confusion& confusion) {
  std::string text = "truth\\predicted";
  for (const auto& name : confusion.classes) {
    text += "," + quoted(name);
  }
  text += "\n";
  for (size_t i = 0; i < confusion.classes.size(); ++i) {
    text += quoted(confusion.classes[i]);
    for (size_t j = 0; j < confusion.classes.size(); ++j) {
      text += fmt::format(",{}", confusion.at(i, j));
    }
    text += "\n";
  }
  return text;
}

Image confusion_image(const Confusion& confusion) {
  const int size = std::max(1, static_cast<int>(confusion.classes.size()));
  const int cell = std::clamp(kWanted / size, kSmallestCell, kLargestCell);
  const bool named = cell >= kTextHeight + 2;
  int label = 0;
  for (const auto& name : confusion.classes) {
    label = std::max(label, text_width(name.substr(0, kLongestName)));
  }
  const int left = kMargin + (named ? label + 2 * kMargin : 0);
  const int top = left + 2 * kTextHeight;
  Image image;
  const int title = text_width("rows: truth  columns: predicted");
  image.width = std::max(left + size * cell, title + kMargin) + kMargin;
  image.height = top + size * cell + kMargin;
  image.pixels.assign(
      static_cast<size_t>(image.width) * static_cast<size_t>(image.height) * 3,
      255);
  draw_text(image, kMargin, kMargin, "rows: truth  columns: predicted", kInk);
  const auto rows = class_rows(confusion);
  for (int i = 0; i < static_cast<int>(rows.size()); ++i) {
    const auto& row = rows[static_cast<size_t>(i)];
    const int middle = (cell - kTextHeight) / 2;
    if (named) {
      const auto name = row.name.substr(0, kLongestName);
      draw_text(
          image,
          left - kMargin - text_width(name),
          top + i * cell + middle,
          name,
          kInk);
      draw_text_up(image, left + i * cell + middle, top - kMargin, name, kInk);
    }
    for (int j = 0; j < static_cast<int>(rows.size()); ++j) {
      const int64_t count =
          confusion.at(static_cast<size_t>(i), static_cast<size_t>(j));
      const double share = row.count > 0 ? ratio(count, row.count) : 0;
      const int gap = cell >= 8 ? 1 : 0;
      fill_rectangle(
          image,
          left + j * cell,
          top + i * cell,
          cell - gap,
          cell - gap,
          count > 0 ? shade(.06 + .94 * share) : Colour{244, 244, 244});
      const std::string text = fmt::format("{}", count);
      const int width = text_width(text);
      if (count > 0 && width <= cell - 2) {
        draw_text(
            image,
            left + j * cell + (cell - width) / 2,
            top + i * cell + middle,
            text,
            share > .45 ? kPaper : kInk);
      }
    }
  }
  return image;
}

}  // namespace lockstep::record
