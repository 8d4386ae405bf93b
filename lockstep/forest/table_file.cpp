#include "lockstep/forest/table_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "lockstep/base/nearest.h"
#include "lockstep/base/text.h"
#include "lockstep/forest/utf8.h"

namespace lockstep::forest {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string> kEndings = {".csv", ".npy", ".h5", ".hdf5"};

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

bool readable(const os::Path& path) {
  return std::find(
             kEndings.begin(),
             kEndings.end(),
             lower(path.extension().string())) != kEndings.end();
}

// Files of equal columns as one table. Without `labels` it has none: those that
// nobody requires may be words here, numbers there, and absent elsewhere.
class Folder : public TableFile {
 public:
  Folder(std::vector<std::unique_ptr<TableFile>> files, bool labels)
      : files_(std::move(files)), labels_(labels) {
    for (const auto& file : files_) {
      starts_.push_back(rows_);
      rows_ += file->num_rows();
    }
  }
  const std::vector<std::string>& features() const override {
    return files_.front()->features();
  }
  uint64_t num_rows() const override { return rows_; }
  bool has_label() const override {
    return labels_ && files_.front()->has_label();
  }
  bool has_text() const override {
    return labels_ && files_[file_of(0)]->has_text();
  }
  uint64_t first_text() const override {
    const size_t i = file_of(0);
    return starts_[i] + files_[i]->first_text();
  }
  Result<RowBlock> read(uint64_t first, size_t count) override {
    RowBlock block;
    while (block.rows < count && first < rows_) {
      const size_t i = file_of(first);
      LOCKSTEP_ASSIGN(
          const RowBlock more,
          files_[i]->read(first - starts_[i], count - block.rows));
      const auto append = [](auto& to, const auto& from) {
        to.insert(to.end(), from.begin(), from.end());
      };
      append(block.features, more.features);
      if (labels_) {
        append(block.numbers, more.numbers);
        append(block.texts, more.texts);
      }
      block.rows += more.rows;
      first += more.rows;
    }
    return block;
  }
  std::string place(uint64_t row) const override {
    const size_t i = file_of(row);
    return files_[i]->place(row - starts_[i]);
  }

 private:
  // The last that starts at or before the row: empty files have none.
  size_t file_of(uint64_t row) const {
    return static_cast<size_t>(
        std::upper_bound(starts_.begin(), starts_.end(), row) -
        starts_.begin() - 1);
  }
  std::vector<std::unique_ptr<TableFile>> files_;
  bool labels_;
  std::vector<uint64_t> starts_;
  uint64_t rows_ = 0;
};

Result<std::unique_ptr<TableFile>> open_folder(
    const os::Path& path,
    const TableOptions& options) {
  LOCKSTEP_ASSIGN(const auto paths, table_files(path));
  std::vector<std::unique_ptr<TableFile>> files;
  os::Path first;
  const TableFile* filled = nullptr;  // the first with rows
  for (const auto& one : paths) {
    if (!files.empty() && is_label_file(options.label)) {
      return bad(
          fmt::format(
              "data.label={}: {} has several tables, and the labels are of "
              "one; accepted: a folder with one .npy, or labels in a column "
              "(data.label=-1: the last)",
              options.label,
              path.string()));
    }
    LOCKSTEP_ASSIGN(auto file, open_table(one, options));
    if (!files.empty() && file->features() != files.front()->features()) {
      return bad(
          fmt::format(
              "{}: its columns differ from those of {}",
              one.string(),
              first.string()));
    }
    const bool other_kind = options.label_required && filled != nullptr &&
                            filled->has_text() != file->has_text();
    if (other_kind && file->num_rows() > 0) {
      return bad(
          fmt::format(
              "{}: its labels are {}, those before are {}; accepted: one kind "
              "in a folder",
              one.string(),
              file->has_text() ? "words" : "numbers",
              file->has_text() ? "numbers" : "words"));
    }
    first = files.empty() ? one : first;
    filled = filled == nullptr && file->num_rows() > 0 ? file.get() : filled;
    files.push_back(std::move(file));
  }
  if (files.empty()) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "{}: no table in this folder; accepted: {}",
            path.string(),
            ".csv, .npy, .h5, .hdf5"));
  }
  return std::make_unique<Folder>(std::move(files), options.label_required);
}

class Selected : public TableFile {
 public:
  Selected(
      std::unique_ptr<TableFile> table,
      std::vector<std::string> features,
      std::vector<size_t> places)
      : table_(std::move(table)),
        features_(std::move(features)),
        places_(std::move(places)) {}
  const std::vector<std::string>& features() const override {
    return features_;
  }
  uint64_t num_rows() const override { return table_->num_rows(); }
  bool has_label() const override { return table_->has_label(); }
  bool has_text() const override { return table_->has_text(); }
  uint64_t first_text() const override { return table_->first_text(); }
  std::string place(uint64_t row) const override { return table_->place(row); }
  Result<RowBlock> read(uint64_t first, size_t count) override {
    LOCKSTEP_ASSIGN(RowBlock block, table_->read(first, count));
    const size_t width = table_->features().size();
    std::vector<float> chosen;
    chosen.reserve(block.rows * places_.size());
    for (size_t i = 0; i < block.rows; ++i) {
      for (const size_t place : places_) {
        chosen.push_back(block.features[i * width + place]);
      }
    }
    block.features = std::move(chosen);
    return block;
  }

 private:
  std::unique_ptr<TableFile> table_;
  std::vector<std::string> features_;
  std::vector<size_t> places_;
};

}  // namespace

bool is_label_file(const std::string& label) {
  return label.ends_with(".npy");
}

bool TableOptions::wants(const std::string& column) const {
  return only.empty() ||
         std::find(only.begin(), only.end(), column) != only.end();
}

Result<std::unique_ptr<TableFile>> select_features(
    std::unique_ptr<TableFile> table,
    const std::vector<std::string>& features) {
  if (table->features() == features) {
    return table;
  }
  std::vector<size_t> places;
  std::vector<std::string> absent;
  const auto& there = table->features();
  for (const auto& feature : features) {
    const auto at = std::find(there.begin(), there.end(), feature);
    places.push_back(static_cast<size_t>(at - there.begin()));
    if (at == there.end()) {
      absent.push_back(feature);
    }
  }
  if (!absent.empty()) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "{}: no column '{}', which the forest was trained with",
            table->place(0),
            fmt::join(absent, "', '")));
  }
  return std::make_unique<Selected>(
      std::move(table), features, std::move(places));
}

Result<std::vector<os::Path>> table_files(const os::Path& path) {
  std::error_code absent;
  if (!fs::is_directory(path, absent)) {
    return std::vector<os::Path>{path};
  }
  LOCKSTEP_ASSIGN(const auto names, os::real_files().list(path));
  std::vector<os::Path> files;
  for (const auto& name : names) {
    if (readable(name)) {
      files.push_back(path / name);
    }
  }
  return files;
}

Result<std::unique_ptr<TableFile>> open_table(
    const os::Path& path,
    const TableOptions& options) {
  std::error_code absent;
  if (!fs::exists(path, absent)) {
    return Error(
        ErrorCode::kNotFound, fmt::format("{}: no such table", path.string()));
  }
  if (fs::is_directory(path, absent)) {
    return open_folder(path, options);
  }
  const std::string ending = lower(path.extension().string());
  if (ending == ".csv") {
    return open_csv(path, options);
  }
  if (ending == ".npy") {
    return open_npy(path, options);
  }
  if (ending == ".h5" || ending == ".hdf5") {
    return open_hdf5(path, options);
  }
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "{}: '{}' is not a table; accepted: .csv, .npy, .h5, .hdf5",
          path.string(),
          ending));
}

Result<void> check_names(
    const std::string& place,
    std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) {
    return {};
  }
  return bad(
      fmt::format(
          "{}: column '{}' stands twice; accepted: names that differ",
          place,
          *twice));
}

Result<void> check_utf8(
    const std::string& place,
    const std::vector<std::string>& names) {
  const auto found = std::find_if_not(names.begin(), names.end(), is_utf8);
  if (found == names.end()) {
    return {};
  }
  return bad(
      fmt::format(
          "{}: the name of column '{}' is not UTF-8, as which tables are read",
          place,
          printable(*found)));
}

Error no_label(
    const os::Path& path,
    const std::string& label,
    const std::vector<std::string>& columns) {
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format(
          "data.label={}: {} has no such column; {}",
          label,
          path.string(),
          suggest(label, columns)));
}

}  // namespace lockstep::forest
