#include "lockstep/commands/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace lockstep::commands {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() &&
         (std::isdigit(static_cast<unsigned char>(text[0])) != 0 ||
          text[0] == '-' || text[0] == '$' || text[0] == '.');
}

}  // namespace

std::string Table::to_string() const {
  std::vector<size_t> widths;
  std::vector<bool> numeric;
  for (size_t column = 0; column < header_.size(); ++column) {
    size_t width = header_[column].size();
    bool numbers = !rows_.empty();
    for (const auto& row : rows_) {
      width = std::max(width, row[column].size());
      numbers = numbers && (is_number(row[column]) || row[column].empty());
    }
    widths.push_back(width);
    numeric.push_back(numbers);
  }
  std::string text;
  const auto add_line = [&](const std::vector<std::string>& row) {
    std::string line;
    for (size_t column = 0; column < row.size(); ++column) {
      line += column == 0 ? "" : "  ";
      line += numeric[column]
                  ? fmt::format("{:>{}}", row[column], widths[column])
                  : fmt::format("{:<{}}", row[column], widths[column]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  };
  add_line(header_);
  for (const auto& row : rows_) {
    add_line(row);
  }
  return text;
}

}  // namespace lockstep::commands
