#include "lockstep/record/pixel_text.h"

#include <algorithm>
#include <cctype>
#include <map>

namespace lockstep::record {
namespace {

constexpr int kDot = 2;
constexpr int kAdvance = 4 * kDot;

// Five rows, each a digit of three bits: 4 left, 2 middle, 1 right.
std::string_view glyph(char c) {
  static const std::map<char, std::string_view> font = {
      {' ', "00000"}, {'0', "75557"}, {'1', "26227"}, {'2', "71747"},
      {'3', "71717"}, {'4', "55711"}, {'5', "74717"}, {'6', "74757"},
      {'7', "71122"}, {'8', "75757"}, {'9', "75717"}, {'A', "25755"},
      {'B', "65656"}, {'C', "34443"}, {'D', "65556"}, {'E', "74647"},
      {'F', "74644"}, {'G', "34553"}, {'H', "55755"}, {'I', "72227"},
      {'J', "11152"}, {'K', "55655"}, {'L', "44447"}, {'M', "57755"},
      {'N', "65555"}, {'O', "25552"}, {'P', "65644"}, {'Q', "25563"},
      {'R', "65655"}, {'S', "34216"}, {'T', "72222"}, {'U', "55557"},
      {'V', "55552"}, {'W', "55775"}, {'X', "55255"}, {'Y', "55222"},
      {'Z', "71247"}, {'-', "00700"}, {'_', "00007"}, {'.', "00002"},
      {':', "02020"}, {',', "00024"}, {'(', "12221"}, {')', "42224"},
      {'/', "11244"}, {'%', "51245"}, {'+', "02720"}, {'?', "61202"},
  };
  const auto found =
      font.find(static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  return found == font.end() ? font.at('?') : found->second;
}

// Calls dot(column, row) for each dot of the text, in dots.
template <class Dot>
void each_dot(std::string_view text, const Dot& dot) {
  int column = 0;
  for (const char c : text) {
    const auto rows = glyph(c);
    for (int row = 0; row < 5; ++row) {
      const int bits = rows[static_cast<size_t>(row)] - '0';
      for (int bit = 0; bit < 3; ++bit) {
        if ((bits & (4 >> bit)) != 0) {
          dot(column + bit, row);
        }
      }
    }
    column += 4;
  }
}

}  // namespace

int text_width(std::string_view text) {
  return text.empty() ? 0 : static_cast<int>(text.size()) * kAdvance - kDot;
}

void fill_rectangle(
    Image& image,
    int x,
    int y,
    int width,
    int height,
    const Colour& colour) {
  for (int row = std::max(0, y); row < std::min(image.height, y + height);
       ++row) {
    for (int column = std::max(0, x); column < std::min(image.width, x + width);
         ++column) {
      const auto at =
          (static_cast<size_t>(row) * static_cast<size_t>(image.width) +
           static_cast<size_t>(column)) *
          3;
      std::copy(
          colour.begin(),
          colour.end(),
          image.pixels.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

void draw_text(
    Image& image,
    int x,
    int y,
    std::string_view text,
    const Colour& colour) {
  each_dot(text, [&](int column, int row) {
    fill_rectangle(
        image, x + column * kDot, y + row * kDot, kDot, kDot, colour);
  });
}

void draw_text_up(
    Image& image,
    int x,
    int y,
    std::string_view text,
    const Colour& colour) {
  each_dot(text, [&](int column, int row) {
    fill_rectangle(
        image, x + row * kDot, y - (column + 1) * kDot, kDot, kDot, colour);
  });
}

}  // namespace lockstep::record
