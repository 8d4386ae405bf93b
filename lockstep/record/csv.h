#pragma once

// CSV files of a run. metrics.csv: `step,epoch,` then a column a metric, means
// over ranks. timing.csv: one line an iteration and rank. Numbers are printed
// so that they read back exactly.

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"
#include "lockstep/wire/event.h"

namespace lockstep::record {

inline constexpr std::string_view kTimingHeader =
    "rank,step,epoch,samples,data,compute,communication,wait,total";

// A table of metrics that may gain columns: then the file is rewritten whole,
// as it is when a step that is there already gains values; else a line is
// appended. On open of an existing file its rows are kept up to `last_step` (a
// resumed run drops what came after its checkpoint; -1 keeps all) and a last
// line that was cut is dropped. A value that is absent is an empty cell.
class MetricsTable {
 public:
  static Result<MetricsTable>
  open(os::FileSystem& files, const os::Path& path, int64_t last_step = -1);
  // Rows of one step are merged into one line; values called "step" or "epoch"
  // are passed over. After an error the row is in memory and goes to the file
  // with the next one.
  Result<void>
  add(int64_t step, int64_t epoch, const std::map<std::string, double>& values);
  struct Row {
    int64_t step = 0;
    int64_t epoch = 0;
    std::map<std::string, double> values;
  };
  const std::vector<Row>& rows() const { return rows_; }
  const std::vector<std::string>& columns() const { return columns_; }

 private:
  MetricsTable(os::FileSystem& files, os::Path path)
      : files_(&files), path_(std::move(path)) {}
  Result<void> rewrite();
  std::string line(const Row& row) const;
  os::FileSystem* files_;
  os::Path path_;
  std::unique_ptr<os::Appender> appender_;  // none: rewrite at the next add
  std::vector<std::string> columns_;
  std::vector<Row> rows_;
};

// A cell as RFC 4180 has it: in quotes where it needs them.
std::string csv_cell(const std::string& text);

// Without the newline.
std::string timing_line(int rank, const wire::Iteration& iteration);

// Reads a CSV with a header (quotes as RFC 4180). Empty lines are passed over.
// A row of another length than the header is an error with file:line.
struct CsvTable {
  std::vector<std::string> header;
  std::vector<std::vector<std::string>> rows;
  // Index of a column; -1 when it is not there.
  int column(std::string_view name) const;
};
Result<CsvTable> parse_csv(std::string_view text, const std::string& source);

}  // namespace lockstep::record
