#include "lockstep/record/csv.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace lockstep::record {

namespace {

template <class Number>
Result<Number> parse_cell(
    const std::string& cell,
    const std::string& source,
    size_t row,
    const std::string& column) {
  Number value{};
  const char* end = cell.data() + cell.size();
  const auto parsed = std::from_chars(cell.data(), end, value);
  if (parsed.ec != std::errc() || parsed.ptr != end) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format(
            "{}: row {}: '{}' in column '{}' is not a number",
            source,
            row,
            cell,
            column));
  }
  return value;
}

// One record from the front of `text`; `lines` counts the newlines it took.
std::vector<std::string> take_record(std::string_view& text, size_t& lines) {
  std::vector<std::string> cells(1);
  bool inside = false;
  size_t at = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (inside) {
      lines += c == '\n' ? 1 : 0;
      if (c != '"') {
        cells.back() += c;
      } else if (at + 1 < text.size() && text[at + 1] == '"') {
        cells.back() += '"';
        ++at;
      } else {
        inside = false;
      }
    } else if (c == '"' && cells.back().empty()) {
      inside = true;
    } else if (c == ',') {
      cells.emplace_back();
    } else if (c == '\n') {
      ++lines;
      ++at;
      break;
    } else if (c != '\r') {
      cells.back() += c;
    }
  }
  text.remove_prefix(at);
  return cells;
}

}  // namespace

std::string csv_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\r\n") == std::string::npos) {
    return cell;
  }
  std::string text = "\"";
  for (const char c : cell) {
    text += c;
    if (c == '"') {
      text += c;
    }
  }
  return text + '"';
}

int CsvTable::column(std::string_view name) const {
  const auto found = std::find(header.begin(), header.end(), name);
  return found == header.end() ? -1 : static_cast<int>(found - header.begin());
}

Result<CsvTable> parse_csv(std::string_view text, const std::string& source) {
  CsvTable table;
  size_t line = 1;
  // Spreadsheets put a byte-order mark before the first name.
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  if (text.starts_with(kMark)) {
    text.remove_prefix(kMark.size());
  }
  while (!text.empty()) {
    const size_t start = line;
    auto cells = take_record(text, line);
    if (cells.size() == 1 && cells[0].empty()) {
      continue;
    }
    if (table.header.empty()) {
      table.header = std::move(cells);
      continue;
    }
    if (cells.size() != table.header.size()) {
      return Error(
          ErrorCode::kCorrupt,
          fmt::format(
              "{}:{}: {} cells, the header has {}",
              source,
              start,
              cells.size(),
              table.header.size()));
    }
    table.rows.push_back(std::move(cells));
  }
  if (table.header.empty()) {
    return Error(
        ErrorCode::kCorrupt, fmt::format("{}:1: no header line", source));
  }
  return table;
}

std::string timing_line(int rank, const wire::Iteration& iteration) {
  return fmt::format(
      "{},{},{},{},{},{},{},{},{}",
      rank,
      iteration.step,
      iteration.epoch,
      iteration.samples,
      iteration.data,
      iteration.compute,
      iteration.communication,
      iteration.wait,
      iteration.total);
}

Result<MetricsTable> MetricsTable::open(
    os::FileSystem& files,
    const os::Path& path,
    int64_t last_step) {
  MetricsTable table(files, path);
  if (!files.exists(path)) {
    return table;
  }
  LOCKSTEP_ASSIGN(std::string text, files.read(path));
  const size_t whole = text.rfind('\n');
  const bool cut = !text.ends_with('\n');
  text.resize(whole == std::string::npos ? 0 : whole + 1);
  if (text.empty()) {
    return table;
  }
  const std::string source = path.string();
  LOCKSTEP_ASSIGN(CsvTable csv, parse_csv(text, source));
  if (csv.header.size() < 2 || csv.header[0] != "step" ||
      csv.header[1] != "epoch") {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("{}:1: the header does not start with step,epoch", source));
  }
  table.columns_.assign(csv.header.begin() + 2, csv.header.end());
  bool dropped = cut;
  for (size_t i = 0; i < csv.rows.size(); ++i) {
    const auto& cells = csv.rows[i];
    Row row;
    LOCKSTEP_ASSIGN(
        row.step, parse_cell<int64_t>(cells[0], source, i + 1, "step"));
    LOCKSTEP_ASSIGN(
        row.epoch, parse_cell<int64_t>(cells[1], source, i + 1, "epoch"));
    for (size_t k = 2; k < cells.size(); ++k) {
      if (!cells[k].empty()) {
        LOCKSTEP_ASSIGN(
            row.values[csv.header[k]],
            parse_cell<double>(cells[k], source, i + 1, csv.header[k]));
      }
    }
    if (last_step >= 0 && row.step > last_step) {
      dropped = true;
    } else {
      table.rows_.push_back(std::move(row));
    }
  }
  if (dropped) {
    LOCKSTEP_TRY(table.rewrite());
  } else {
    LOCKSTEP_ASSIGN(table.appender_, files.open_append(path));
  }
  return table;
}

Result<void> MetricsTable::add(
    int64_t step,
    int64_t epoch,
    const std::map<std::string, double>& values) {
  // A second column of the same name would hide the row's own.
  auto kept = values;
  kept.erase("step");
  kept.erase("epoch");
  bool append = appender_ != nullptr;
  for (const auto& [name, value] : kept) {
    if (std::find(columns_.begin(), columns_.end(), name) == columns_.end()) {
      columns_.push_back(name);
      append = false;
    }
  }
  const auto place = std::lower_bound(
      rows_.begin(), rows_.end(), step, [](const Row& row, int64_t wanted) {
        return row.step < wanted;
      });
  if (place == rows_.end()) {
    rows_.push_back({step, epoch, kept});
  } else if (place->step == step) {
    place->epoch = epoch;
    for (const auto& [name, value] : kept) {
      place->values[name] = value;
    }
    append = false;
  } else {
    rows_.insert(place, {step, epoch, kept});
    append = false;
  }
  if (!append) {
    return rewrite();
  }
  auto appended = appender_->append(line(rows_.back()));
  if (!appended) {
    // Part of the line may be there: start over with a whole file.
    appender_.reset();
  }
  return appended;
}

std::string MetricsTable::line(const Row& row) const {
  std::string text = fmt::format("{},{}", row.step, row.epoch);
  for (const auto& column : columns_) {
    text += ',';
    if (const auto found = row.values.find(column); found != row.values.end()) {
      text += fmt::format("{}", found->second);
    }
  }
  return text + '\n';
}

Result<void> MetricsTable::rewrite() {
  appender_.reset();
  std::string text = "step,epoch";
  for (const auto& column : columns_) {
    text += ',';
    text += csv_cell(column);
  }
  text += '\n';
  for (const Row& row : rows_) {
    text += line(row);
  }
  LOCKSTEP_TRY(files_->write_atomic(path_, text));
  LOCKSTEP_ASSIGN(appender_, files_->open_append(path_));
  return {};
}

}  // namespace lockstep::record
