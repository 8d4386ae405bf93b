#include <fmt/format.h>

#include <algorithm>

#include "lockstep/forest/hdf5_file.h"
#include "lockstep/forest/table_file.h"

namespace lockstep::forest {
namespace {

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

// Data sets of one length: those with one axis are a column, those with two as
// many as their second has.
class Hdf5Table : public TableFile {
 public:
  struct Part {
    std::string name;
    size_t columns = 1;
  };
  Hdf5Table(
      os::Path path,
      Hdf5File file,
      std::vector<Part> parts,
      std::string label,
      uint64_t rows)
      : path_(std::move(path)),
        file_(std::move(file)),
        parts_(std::move(parts)),
        label_(std::move(label)),
        rows_(rows) {
    for (const auto& part : parts_) {
      for (size_t i = 0; i < part.columns; ++i) {
        features_.push_back(
            part.columns == 1 ? part.name : fmt::format("{}.{}", part.name, i));
      }
    }
  }
  const std::vector<std::string>& features() const override {
    return features_;
  }
  uint64_t num_rows() const override { return rows_; }
  bool has_label() const override { return !label_.empty(); }
  std::string place(uint64_t row) const override {
    return fmt::format("{}: row {}", path_.string(), row);
  }
  Result<RowBlock> read(uint64_t first, size_t count) override {
    RowBlock block;
    if (first >= rows_) {
      return block;
    }
    block.rows = std::min<uint64_t>(count, rows_ - first);
    block.features.resize(block.rows * features_.size());
    size_t at = 0;
    for (const auto& part : parts_) {
      LOCKSTEP_ASSIGN(
          const auto values, file_.read_floats(part.name, first, block.rows));
      for (size_t i = 0; i < block.rows; ++i) {
        for (size_t c = 0; c < part.columns; ++c) {
          block.features[i * features_.size() + at + c] =
              values[i * part.columns + c];
        }
      }
      at += part.columns;
    }
    if (has_label()) {
      LOCKSTEP_ASSIGN(
          block.numbers, file_.read_doubles(label_, first, block.rows));
    }
    return block;
  }

 private:
  os::Path path_;
  Hdf5File file_;
  std::vector<Part> parts_;
  std::string label_;
  uint64_t rows_;
  std::vector<std::string> features_;
};

}  // namespace

Result<std::unique_ptr<TableFile>> open_hdf5(
    const os::Path& path,
    const TableOptions& options) {
  LOCKSTEP_ASSIGN(auto file, Hdf5File::open(path));
  std::vector<Hdf5Table::Part> parts;
  std::vector<std::string> names;
  std::string label;
  uint64_t rows = 0;
  for (const auto& set : file.sets()) {
    if (names.empty()) {
      rows = set.shape[0];
    }
    names.push_back(set.name);
    if (set.shape.size() > 2 || set.shape[0] != rows) {
      return bad(
          fmt::format(
              "{}: '{}' has {} rows, '{}' has {}; a table's data sets are "
              "equally long, with one or two axes",
              path.string(),
              set.name,
              set.shape[0],
              names[0],
              rows));
    }
    if (!options.label.empty() && set.name == options.label) {
      label = set.name;
    } else {
      parts.push_back(
          {set.name,
           set.shape.size() == 2 ? static_cast<size_t>(set.shape[1]) : 1});
    }
  }
  if (label.empty() && !options.label.empty() && options.label_required) {
    return no_label(path, options.label, names);
  }
  if (parts.empty()) {
    return bad(path.string() + ": no data set of numbers but the label");
  }
  return std::make_unique<Hdf5Table>(
      path, std::move(file), std::move(parts), label, rows);
}

}  // namespace lockstep::forest
