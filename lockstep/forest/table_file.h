#pragma once

// A table on disk, read a block of rows at a time: CSV with a header, NPY, or
// HDF5 with one data set a column; or a folder of such files, one after the
// other. Errors name file, row and column and what was expected. One thread a
// table; files may be read by many ranks at once.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::forest {

struct RowBlock {
  size_t rows = 0;
  std::vector<float> features;  // row-major; an empty cell is NaN
  // One of them, by has_text: what the label column holds.
  std::vector<double> numbers;
  std::vector<std::string> texts;
};

class TableFile {
 public:
  virtual ~TableFile() = default;
  // The features, in the order of the file.
  virtual const std::vector<std::string>& features() const = 0;
  virtual uint64_t num_rows() const = 0;
  virtual bool has_label() const = 0;
  // Labels are words, not numbers: one of them is.
  virtual bool has_text() const { return false; }
  // The first row whose label is a word.
  virtual uint64_t first_text() const { return 0; }
  // Rows from `first` on; never more than there are.
  virtual Result<RowBlock> read(uint64_t first, size_t count) = 0;
  // "x.csv:17" for messages.
  virtual std::string place(uint64_t row) const = 0;
};

struct TableOptions {
  // Name of a column (CSV, HDF5), its number (NPY, -1: the last), or another
  // .npy with one number a row. Empty: no labels, every column is a feature.
  std::string label = "label";
  // Where it is not, files of a folder may have labels of other kinds, or none:
  // the folder has none.
  bool label_required = true;
  // The features that are asked for; empty: all. Columns of a CSV that are not
  // among them need not be numbers. NPY has no names: where no label is
  // required and there are as many columns as features, they are these, in this
  // order.
  std::vector<std::string> only{};
  // Labels of a CSV are words, even if all of them look like numbers.
  bool words = false;

  bool wants(const std::string& column) const;
};

// The label names a file of labels, which are of one table only.
bool is_label_file(const std::string& label);

Result<std::unique_ptr<TableFile>> open_table(
    const os::Path& path,
    const TableOptions& options);

// The files that open_table reads: the path itself, or the tables of a folder.
Result<std::vector<os::Path>> table_files(const os::Path& path);

// One of each kind; used by open_table.
Result<std::unique_ptr<TableFile>> open_csv(
    const os::Path& path,
    const TableOptions& options);
Result<std::unique_ptr<TableFile>> open_npy(
    const os::Path& path,
    const TableOptions& options);
Result<std::unique_ptr<TableFile>> open_hdf5(
    const os::Path& path,
    const TableOptions& options);

// The table with these features, in this order; others are left out. The error
// names those that are not there.
Result<std::unique_ptr<TableFile>> select_features(
    std::unique_ptr<TableFile> table,
    const std::vector<std::string>& features);

// Refuses a name that stands twice. `place`: whose names, for the message.
Result<void> check_names(
    const std::string& place,
    std::vector<std::string> names);

// Refuses a name that a model could not keep.
Result<void> check_utf8(
    const std::string& place,
    const std::vector<std::string>& names);

// "data.label=clas: x.csv has no such column; did you mean 'class'?"
Error no_label(
    const os::Path& path,
    const std::string& label,
    const std::vector<std::string>& columns);

}  // namespace lockstep::forest
