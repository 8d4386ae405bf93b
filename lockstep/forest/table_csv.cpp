#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>

#include "lockstep/base/text.h"
#include "lockstep/forest/table_file.h"
#include "lockstep/forest/utf8.h"

namespace lockstep::forest {
namespace {

constexpr uint64_t kIndexed = 4096;  // rows between remembered places

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

// A bare NA or nan is missing where labels are words, too; a class of that name
// stands in quotes, as R and others write it.
std::string_view known(std::string_view cell) {
  const bool may_be = cell.size() == 2 || cell.size() == 3;
  const std::string word = may_be ? lower(cell) : "";
  return word == "na" || word == "nan" ? std::string_view() : cell;
}

// The cells of a line that has quotes, as RFC 4180 has them: commas inside, and
// a doubled quote for one. False when a quote is not closed or text follows it.
// Of a row bare NA is missing; of a header it is a name.
bool split_quoted(
    std::string_view line,
    std::vector<std::string>& cells,
    bool is_row = true) {
  cells.clear();
  for (size_t at = 0; at <= line.size(); ++at) {
    const size_t begin = line.find_first_not_of(" \t", at);
    if (begin == std::string_view::npos || line[begin] != '"') {
      const size_t end = std::min(line.find(',', at), line.size());
      const auto cell = trim(line.substr(at, end - at));
      cells.emplace_back(is_row ? known(cell) : cell);
      at = end;
      continue;
    }
    auto& cell = cells.emplace_back();
    for (at = begin + 1; at < line.size(); ++at) {
      if (line[at] == '"' && line.substr(at + 1, 1) != "\"") {
        break;
      }
      at += line[at] == '"' ? 1 : 0;
      cell += line[at];
    }
    if (at >= line.size()) {
      return false;
    }
    at = line.find_first_not_of(" \t", at + 1);
    at = std::min(at, line.size());
    if (at < line.size() && line[at] != ',') {
      return false;
    }
  }
  return true;
}

bool has_quote(std::string_view line) {
  return line.find('"') != std::string_view::npos;
}

std::string outside_quotes(std::string_view line) {
  std::string rest;
  bool quoted = false;
  for (const char c : line) {
    quoted = quoted != (c == '"');
    if (!quoted && c != '"') {
      rest += c;
    }
  }
  return rest;
}

// Whole text as a number; nan, inf and empty cells too.
bool to_number(std::string_view text, double& value) {
  if (text.empty() || (text.size() == 2 && lower(text) == "na")) {
    value = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  if (text.front() == '+' && !text.starts_with("+-")) {
    text.remove_prefix(1);
  }
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) {
    value = std::strtod(std::string(text).c_str(), nullptr);  // infinity, or 0
  }
  return error != std::errc::invalid_argument &&
         end == text.data() + text.size();
}

class Csv : public TableFile {
 public:
  static Result<std::unique_ptr<TableFile>> open(
      const os::Path& path,
      const TableOptions& options) {
    LOCKSTEP_ASSIGN(auto file, os::MappedFile::open(path));
    auto csv = std::unique_ptr<Csv>(new Csv(path, std::move(file)));
    LOCKSTEP_TRY(csv->read_header(options));
    csv->index_lines();
    csv->look_at_label(options.words);
    return csv;
  }
  const std::vector<std::string>& features() const override {
    return features_;
  }
  uint64_t num_rows() const override { return rows_; }
  bool has_label() const override { return label_ != kNone; }
  bool has_text() const override { return has_text_; }
  uint64_t first_text() const override { return first_text_; }
  std::string place(uint64_t row) const override {
    return fmt::format("{}:{}", path_.string(), row + 2);
  }

  Result<RowBlock> read(uint64_t first, size_t count) override {
    RowBlock block;
    if (first >= rows_) {
      return block;
    }
    size_t at = starts_[first / kIndexed];
    for (uint64_t skip = first % kIndexed; skip > 0; --skip) {
      take_line(at);
    }
    count = std::min<uint64_t>(count, rows_ - first);
    block.features.reserve(count * features_.size());
    for (; block.rows < count; ++block.rows) {
      LOCKSTEP_TRY(read_row(take_line(at), first + block.rows, block));
    }
    return block;
  }

 private:
  static constexpr size_t kNone = ~size_t{0};

  Csv(os::Path path, os::MappedFile file)
      : path_(std::move(path)), file_(std::move(file)) {
    const auto bytes = file_.bytes();
    text_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

  std::string_view take_line(size_t& at) const {
    const size_t end = std::min(text_.find('\n', at), text_.size());
    const auto line = text_.substr(at, end - at);
    at = std::min(end + 1, text_.size());
    return line;
  }

  Result<void> read_header(const TableOptions& options) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    size_t at = text_.starts_with(kByteOrderMark) ? kByteOrderMark.size() : 0;
    const auto line = trim(take_line(at));
    if (line.empty()) {
      return bad(fmt::format("{}: no header line", path_.string()));
    }
    body_ = at;
    LOCKSTEP_TRY(check_separators(line, options));
    if (!split_quoted(line, columns_, /*is_row=*/false)) {
      return bad_quotes(fmt::format("{}:1", path_.string()));
    }
    LOCKSTEP_TRY(check_names(fmt::format("{}:1", path_.string()), columns_));
    for (size_t i = 0; i < columns_.size(); ++i) {
      const bool label = !options.label.empty() && columns_[i] == options.label;
      label_ = label ? i : label_;
      const bool feature = !label && options.wants(columns_[i]);
      uses_.push_back(label ? Use::kLabel : feature ? Use::kFeature : Use::kNo);
      if (feature) {
        features_.push_back(columns_[i]);
      }
    }
    LOCKSTEP_TRY(check_utf8(fmt::format("{}:1", path_.string()), features_));
    if (label_ == kNone && !options.label.empty() && options.label_required) {
      return no_label(path_, options.label, columns_);
    }
    if (columns_.size() == (label_ == kNone ? 0U : 1U)) {
      return bad(fmt::format("{}: no column but the label", path_.string()));
    }
    return {};
  }

  // What other programs write as CSV; as one with commas it has one column, or
  // one line.
  Result<void> check_separators(
      std::string_view header,
      const TableOptions& options) const {
    if (header.find('\r') != std::string_view::npos) {
      return bad(
          fmt::format(
              "{}: lines end with CR alone here; accepted: LF, or CR and LF",
              path_.string()));
    }
    const auto bare = outside_quotes(header);
    const size_t at = bare.find_first_of(";\t");
    const bool named =
        !options.only.empty() && options.wants(std::string(header));
    if (at == std::string::npos || bare.find(',') != std::string::npos ||
        named) {
      return {};
    }
    return bad(
        fmt::format(
            "{}:1: fields are separated by {} here; accepted: commas",
            path_.string(),
            bare[at] == ';' ? "';'" : "tabs"));
  }

  // Empty lines at the end are no rows.
  void index_lines() {
    size_t at = body_;
    uint64_t lines = 0;
    while (at < text_.size()) {
      const size_t start = at;
      const auto line = take_line(at);
      if (lines++ % kIndexed == 0) {
        starts_.push_back(start);
      }
      if (!trim(line).empty()) {
        rows_ = lines;
      }
    }
  }

  // Numbers, or words when any cell is one.
  void look_at_label(bool words) {
    has_text_ = words && label_ != kNone;
    if (has_text_) {
      return;
    }
    size_t at = body_;
    for (uint64_t row = 0; row < rows_ && label_ != kNone; ++row) {
      double value = 0;
      if (!to_number(label_of(take_line(at)), value)) {
        has_text_ = true;
        first_text_ = row;
        return;
      }
    }
  }

  // From the nearer end of the line. Good for this call only: it may be a part
  // of cells_.
  std::string_view label_of(std::string_view line) {
    line = trim(line);
    if (has_quote(line)) {
      const bool there = split_quoted(line, cells_) && label_ < cells_.size();
      return there ? std::string_view(cells_[label_]) : std::string_view();
    }
    size_t others = std::min(label_, columns_.size() - 1 - label_);
    const bool backwards = others < label_;
    for (; others > 0; --others) {
      const size_t comma = backwards ? line.rfind(',') : line.find(',');
      if (comma == std::string_view::npos) {
        return {};
      }
      line = backwards ? line.substr(0, comma) : line.substr(comma + 1);
    }
    const size_t comma = backwards ? line.rfind(',') : line.find(',');
    if (comma == std::string_view::npos) {
      return trim(line);
    }
    return trim(backwards ? line.substr(comma + 1) : line.substr(0, comma));
  }

  Result<void> read_row(std::string_view line, uint64_t row, RowBlock& block) {
    line = trim(line);
    if (has_quote(line)) {
      return read_quoted_row(line, row, block);
    }
    size_t from = 0;
    for (size_t column = 0; column < columns_.size(); ++column) {
      if (from > line.size()) {
        return bad_width(row, column);
      }
      const size_t end = std::min(line.find(',', from), line.size());
      const auto cell = trim(line.substr(from, end - from));
      LOCKSTEP_TRY(take_cell(
          uses_[column] == Use::kLabel ? known(cell) : cell,
          column,
          row,
          block));
      from = end + 1;
    }
    return from <= line.size() ? bad_width(row, columns_.size() + 1)
                               : Result<void>();
  }

  Result<void>
  read_quoted_row(std::string_view line, uint64_t row, RowBlock& block) {
    if (!split_quoted(line, cells_)) {
      return bad_quotes(place(row));
    }
    if (cells_.size() != columns_.size()) {
      return bad_width(row, cells_.size());
    }
    for (size_t column = 0; column < columns_.size(); ++column) {
      LOCKSTEP_TRY(take_cell(cells_[column], column, row, block));
    }
    return {};
  }

  Result<void> take_cell(
      std::string_view cell,
      size_t column,
      uint64_t row,
      RowBlock& block) const {
    const Use use = uses_[column];
    if (use == Use::kNo) {
      return {};
    }
    if (use == Use::kLabel && has_text_) {
      block.texts.emplace_back(cell);
      return {};
    }
    double value = 0;
    if (!to_number(cell, value)) {
      return bad(
          fmt::format(
              "{}: column '{}': '{}' is not a number",
              place(row),
              columns_[column],
              printable(cell)));
    }
    if (use == Use::kLabel) {
      block.numbers.push_back(value);
    } else {
      block.features.push_back(static_cast<float>(value));
    }
    return {};
  }

  Error bad_width(uint64_t row, size_t columns) const {
    return bad(
        columns > columns_.size() ? fmt::format(
                                        "{}: more columns than the {} of the "
                                        "header",
                                        place(row),
                                        columns_.size())
                                  : fmt::format(
                                        "{}: {} columns, the header has {}",
                                        place(row),
                                        columns,
                                        columns_.size()));
  }

  static Error bad_quotes(const std::string& place) {
    return bad(
        place +
        ": a quote that is not closed, or text behind one; accepted: \"a "
        "cell\" "
        "on one line, with \"\" for a quote in it");
  }

  enum class Use : uint8_t { kNo, kFeature, kLabel };

  os::Path path_;
  os::MappedFile file_;
  std::string_view text_;
  std::vector<std::string> columns_;
  std::vector<Use> uses_;  // by column
  std::vector<std::string> features_;
  std::vector<std::string> cells_;  // of the line in hand, when it has quotes
  size_t label_ = kNone;
  size_t body_ = 0;
  uint64_t rows_ = 0;
  std::vector<size_t> starts_;
  bool has_text_ = false;
  uint64_t first_text_ = 0;
};

}  // namespace

Result<std::unique_ptr<TableFile>> open_csv(
    const os::Path& path,
    const TableOptions& options) {
  return Csv::open(path, options);
}

}  // namespace lockstep::forest
