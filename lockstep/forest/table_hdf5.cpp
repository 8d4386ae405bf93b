#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/base/log.h"
#include "lockstep/forest/hdf5_file.h"
#include "lockstep/forest/table_file.h"

namespace lockstep::forest {
namespace {

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

// A data set, and how many columns it is.
struct Hdf5Part {
  std::string name;
  size_t columns = 1;
  std::string feature(size_t i) const {
    return columns == 1 ? name : fmt::format("{}.{}", name, i);
  }
};

std::vector<std::string> feature_names(const std::vector<Hdf5Part>& parts) {
  std::vector<std::string> names;
  for (const auto& part : parts) {
    for (size_t i = 0; i < part.columns; ++i) {
      names.push_back(part.feature(i));
    }
  }
  return names;
}

// Data sets of one length: those with one axis are a column, those with two as
// many as their second has.
class Hdf5Table : public TableFile {
 public:
  Hdf5Table(
      os::Path path,
      Hdf5File file,
      std::vector<Hdf5Part> parts,
      std::string label,
      uint64_t rows)
      : path_(std::move(path)),
        file_(std::move(file)),
        parts_(std::move(parts)),
        label_(std::move(label)),
        rows_(rows),
        features_(feature_names(parts_)) {}
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
  std::vector<Hdf5Part> parts_;
  std::string label_;
  uint64_t rows_;
  std::vector<std::string> features_;
};

std::string shape_text(const Hdf5Set& set) {
  return fmt::format("{}", fmt::join(set.shape, " x "));
}

// A column, or several side by side, as long as the others.
Result<void>
check_shape(const os::Path& path, const Hdf5Set& set, const Hdf5Set& first) {
  if (set.shape.size() > 2) {
    return bad(
        fmt::format(
            "{}: '{}' has the shape {}; accepted: one or two axes",
            path.string(),
            set.name,
            shape_text(set)));
  }
  if (set.shape[0] != first.shape[0]) {
    return bad(
        fmt::format(
            "{}: '{}' has {} rows, '{}' has {}; a table's data sets are "
            "equally long",
            path.string(),
            set.name,
            set.shape[0],
            first.name,
            first.shape[0]));
  }
  return {};
}

Result<void> check_label(const os::Path& path, const Hdf5Set& set) {
  if (set.shape.size() == 2 && set.shape[1] != 1) {
    return bad(
        fmt::format(
            "data.label={}: it has the shape {} in {}; accepted: one number "
            "a row",
            set.name,
            shape_text(set),
            path.string()));
  }
  return {};
}

// Data sets that hold no numbers: no label, and told when they are no feature.
Result<void> check_others(
    const os::Path& path,
    const std::vector<Hdf5Set>& others,
    const TableOptions& options) {
  for (const auto& set : others) {
    if (!options.label.empty() && set.name == options.label &&
        options.label_required) {
      return bad(
          fmt::format(
              "data.label={}: it holds no numbers in {} (strings or records); "
              "accepted: integers, floats, booleans; a .csv may have words",
              set.name,
              path.string()));
    }
    if (set.name != options.label && options.only.empty()) {
      log_warning(
          fmt::format(
              "{}: '{}' is passed over: it holds no numbers",
              path.string(),
              set.name));
    }
  }
  return {};
}

bool wanted(const Hdf5Part& part, const TableOptions& options) {
  for (size_t i = 0; i < part.columns; ++i) {
    if (options.wants(part.feature(i))) {
      return true;
    }
  }
  return false;
}

}  // namespace

Result<std::unique_ptr<TableFile>> open_hdf5(
    const os::Path& path,
    const TableOptions& options) {
  LOCKSTEP_ASSIGN(auto file, Hdf5File::open(path));
  LOCKSTEP_TRY(check_others(path, file.others(), options));
  std::vector<Hdf5Part> parts;
  std::vector<std::string> names;
  std::string label;
  const Hdf5Set* first = nullptr;
  for (const auto& set : file.sets()) {
    names.push_back(set.name);
    const bool is_label = !options.label.empty() && set.name == options.label;
    const Hdf5Part part = {
        set.name,
        set.shape.size() == 2 ? static_cast<size_t>(set.shape[1]) : 1};
    if (!is_label && !wanted(part, options)) {
      continue;
    }
    first = first == nullptr ? &set : first;
    LOCKSTEP_TRY(check_shape(path, set, *first));
    if (is_label) {
      LOCKSTEP_TRY(check_label(path, set));
      label = set.name;
    } else {
      parts.push_back(part);
    }
  }
  if (label.empty() && !options.label.empty() && options.label_required) {
    return no_label(path, options.label, names);
  }
  if (parts.empty() && options.only.empty()) {
    return bad(path.string() + ": no data set of numbers but the label");
  }
  LOCKSTEP_TRY(check_names(path.string(), feature_names(parts)));
  LOCKSTEP_TRY(check_utf8(path.string(), feature_names(parts)));
  const uint64_t rows = first == nullptr ? 0 : first->shape[0];
  return std::make_unique<Hdf5Table>(
      path, std::move(file), std::move(parts), label, rows);
}

}  // namespace lockstep::forest
