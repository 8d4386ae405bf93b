#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "lockstep/base/text.h"
#include "lockstep/forest/table_file.h"

namespace lockstep::forest {
namespace {

constexpr uint64_t kIndexed = 4096;  // rows between remembered places

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

std::string_view unquoted(std::string_view field) {
  field = trim(field);
  return field.size() >= 2 && field.front() == '"' && field.back() == '"'
             ? field.substr(1, field.size() - 2)
             : field;
}

// Whole text as a number; nan, inf and empty cells too.
bool to_number(std::string_view text, double& value) {
  if (text.empty() || lower(text) == "na") {
    value = std::numeric_limits<double>::quiet_NaN();
    return true;
  }
  if (text.front() == '+') {
    text.remove_prefix(1);
  }
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
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
    LOCKSTEP_TRY(csv->look_at_label());
    return csv;
  }
  const std::vector<std::string>& features() const override {
    return features_;
  }
  uint64_t num_rows() const override { return rows_; }
  bool has_label() const override { return label_ != kNone; }
  bool has_text() const override { return has_text_; }
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
    size_t at = 0;
    const auto line = trim(take_line(at));
    if (line.empty()) {
      return bad(fmt::format("{}: no header line", path_.string()));
    }
    body_ = at;
    size_t from = 0;
    while (from <= line.size()) {
      const size_t end = std::min(line.find(',', from), line.size());
      columns_.emplace_back(unquoted(line.substr(from, end - from)));
      from = end + 1;
    }
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (!options.label.empty() && columns_[i] == options.label) {
        label_ = i;
      } else {
        features_.push_back(columns_[i]);
      }
    }
    if (label_ == kNone && !options.label.empty() && options.label_required) {
      return no_label(path_, options.label, columns_);
    }
    if (features_.empty()) {
      return bad(fmt::format("{}: no column but the label", path_.string()));
    }
    return {};
  }

  void index_lines() {
    size_t at = body_;
    while (at < text_.size()) {
      const size_t start = at;
      if (trim(take_line(at)).empty() && at == text_.size()) {
        break;  // a last empty line is none
      }
      if (rows_++ % kIndexed == 0) {
        starts_.push_back(start);
      }
    }
  }

  // Words or numbers: whatever the first filled cell is.
  Result<void> look_at_label() {
    size_t at = body_;
    for (uint64_t row = 0; row < rows_ && label_ != kNone; ++row) {
      const auto field = field_of(take_line(at), label_);
      double value = 0;
      if (!to_number(field, value)) {
        has_text_ = true;
        return {};
      }
      if (!std::isnan(value)) {
        return {};
      }
    }
    return {};
  }

  static std::string_view field_of(std::string_view line, size_t column) {
    size_t from = 0;
    for (; column > 0; --column) {
      const size_t comma = line.find(',', from);
      if (comma == std::string_view::npos) {
        return {};
      }
      from = comma + 1;
    }
    const size_t end = std::min(line.find(',', from), line.size());
    return unquoted(line.substr(from, end - from));
  }

  Result<void> read_row(std::string_view line, uint64_t row, RowBlock& block) {
    line = trim(line);
    size_t from = 0;
    for (size_t column = 0; column < columns_.size(); ++column) {
      if (from > line.size()) {
        return bad(
            fmt::format(
                "{}: {} columns, the header has {}",
                place(row),
                column,
                columns_.size()));
      }
      const size_t end = std::min(line.find(',', from), line.size());
      const auto field = unquoted(line.substr(from, end - from));
      from = end + 1;
      if (column == label_ && has_text_) {
        block.texts.emplace_back(field);
        continue;
      }
      double value = 0;
      if (!to_number(field, value)) {
        return bad(
            fmt::format(
                "{}: column '{}': '{}' is not a number",
                place(row),
                columns_[column],
                field));
      }
      if (column == label_) {
        block.numbers.push_back(value);
      } else {
        block.features.push_back(static_cast<float>(value));
      }
    }
    if (from <= line.size()) {
      return bad(
          fmt::format(
              "{}: more columns than the {} of the header",
              place(row),
              columns_.size()));
    }
    return {};
  }

  os::Path path_;
  os::MappedFile file_;
  std::string_view text_;
  std::vector<std::string> columns_;
  std::vector<std::string> features_;
  size_t label_ = kNone;
  size_t body_ = 0;
  uint64_t rows_ = 0;
  std::vector<size_t> starts_;
  bool has_text_ = false;
};

}  // namespace

Result<std::unique_ptr<TableFile>> open_csv(
    const os::Path& path,
    const TableOptions& options) {
  return Csv::open(path, options);
}

}  // namespace lockstep::forest
