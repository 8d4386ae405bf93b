#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "lockstep/base/text.h"
#include "lockstep/forest/table_file.h"

namespace lockstep::forest {
namespace {

Error bad(const std::string& message) {
  return Error(ErrorCode::kInvalidInput, message);
}

// What stands behind 'key': in the header's Python dictionary.
std::string_view value_of(std::string_view header, std::string_view key) {
  const size_t at = header.find(fmt::format("'{}':", key));
  if (at == std::string_view::npos) {
    return {};
  }
  auto rest = header.substr(at + key.size() + 3);
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  return rest;
}

using Convert = double (*)(const std::byte*);

// Sixteen bits as IEEE 754 has them.
struct Half {
  uint16_t bits;
  explicit operator double() const {
    const int exponent = bits >> 10 & 31;
    const double fraction = bits & 1023;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) {
      return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                           : std::numeric_limits<double>::quiet_NaN();
    }
    return exponent == 0 ? sign * std::ldexp(fraction, -24)
                         : sign * std::ldexp(1024 + fraction, exponent - 25);
  }
};

template <class T, bool kBigEndian>
double convert(const std::byte* from) {
  std::byte bytes[sizeof(T)];
  std::copy_n(from, sizeof(T), bytes);
  if (kBigEndian) {
    std::reverse(bytes, bytes + sizeof(T));
  }
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return static_cast<double>(value);
}

template <class T>
Convert in_order(char order) {
  return order == '>' ? convert<T, true> : convert<T, false>;
}

// Of a type like "<f4": order of bytes, kind, size.
Convert converter(std::string_view type) {
  using Choose = Convert (*)(char);
  const std::pair<std::string_view, Choose> kinds[] = {
      {"f2", in_order<Half>},
      {"f4", in_order<float>},
      {"f8", in_order<double>},
      {"b1", in_order<uint8_t>},
      {"i1", in_order<int8_t>},
      {"u1", in_order<uint8_t>},
      {"i2", in_order<int16_t>},
      {"u2", in_order<uint16_t>},
      {"i4", in_order<int32_t>},
      {"u4", in_order<uint32_t>},
      {"i8", in_order<int64_t>},
      {"u8", in_order<uint64_t>}};
  if (type.size() != 3 || !std::strchr("<>|=", type[0])) {
    return nullptr;
  }
  for (const auto& [name, choose] : kinds) {
    if (name == type.substr(1)) {
      return choose(type[0]);
    }
  }
  return nullptr;
}

// A mapped array of numbers, one or two axes.
struct Array {
  os::MappedFile file;
  const std::byte* data = nullptr;
  uint64_t rows = 0;
  uint64_t columns = 1;
  size_t size = 0;  // of a number
  bool is_float = false;
  bool by_column = false;  // as Fortran lays it, and pandas
  Convert convert = nullptr;

  const std::byte* place(uint64_t row, uint64_t column) const {
    return data +
           (by_column ? column * rows + row : row * columns + column) * size;
  }
  double number(uint64_t row, uint64_t column) const {
    return convert(place(row, column));
  }
};

// Of a tuple like "(3, 2), }": one or two numbers.
Result<std::vector<uint64_t>> read_shape(
    const std::string& name,
    std::string_view text) {
  const auto tuple = text.substr(0, text.find(')'));
  std::vector<uint64_t> axes;
  bool good = tuple.starts_with('(') && tuple.size() < text.size();
  for (size_t at = 1; good && at < tuple.size();) {
    const auto comma = std::min(tuple.find(',', at), tuple.size());
    const auto axis = trim(tuple.substr(at, comma - at));
    const bool last = comma == tuple.size();
    at = comma + 1;
    if (axis.empty() && last) {
      break;  // "(3,)"
    }
    const auto [end, error] = std::from_chars(
        axis.data(), axis.data() + axis.size(), axes.emplace_back());
    good = error == std::errc() && end == axis.data() + axis.size();
  }
  if (!good) {
    return bad(
        fmt::format(
            "{}: the shape {}) in its header; accepted: one or two axes, none "
            "below 0",
            name,
            tuple));
  }
  if (axes.empty() || axes.size() > 2) {
    return bad(fmt::format("{}: {} axes; accepted: 1 or 2", name, axes.size()));
  }
  return axes;
}

Result<Array> open_array(const os::Path& path) {
  LOCKSTEP_ASSIGN(auto file, os::MappedFile::open(path));
  const auto bytes = file.bytes();
  const std::string name = path.string();
  if (bytes.size() < 12 || std::memcmp(bytes.data(), "\x93NUMPY", 6) != 0) {
    return bad(name + ": not an NPY file");
  }
  const bool long_header = std::to_integer<int>(bytes[6]) >= 2;
  uint32_t length = 0;
  std::memcpy(&length, bytes.data() + 8, long_header ? 4 : 2);
  const size_t begin = long_header ? 12 : 10;
  if (length > bytes.size() - begin) {
    return bad(name + ": cut off within its header");
  }
  const std::string_view header(
      reinterpret_cast<const char*>(bytes.data()) + begin, length);
  const auto descr = value_of(header, "descr");
  const auto type = descr.size() > 4 ? descr.substr(1, 3) : std::string_view();
  Array array{std::move(file)};
  array.convert = converter(type);
  if (array.convert == nullptr || descr.substr(4, 1) != "'") {
    return bad(
        fmt::format(
            "{}: numbers of type {}; accepted: f2 f4 f8 i1-i8 u1-u8 b1",
            name,
            descr.substr(0, descr.find(','))));
  }
  array.by_column = value_of(header, "fortran_order").starts_with("True");
  LOCKSTEP_ASSIGN(const auto axes, read_shape(name, value_of(header, "shape")));
  array.rows = axes[0];
  array.columns = axes.size() == 2 ? axes[1] : 1;
  array.size = static_cast<size_t>(type[2] - '0');
  array.is_float = type == "<f4";
  array.data = array.file.bytes().data() + begin + length;
  const size_t there = array.file.bytes().size() - begin - length;
  if (array.columns == 0) {
    return bad(name + ": no columns");
  }
  if (array.rows > there / array.columns / array.size) {
    return bad(
        fmt::format(
            "{}: {} x {} numbers need more than the {} bytes there; the file "
            "is cut off",
            name,
            array.rows,
            array.columns,
            there));
  }
  if (const size_t used = array.rows * array.columns * array.size;
      used < there) {
    return bad(
        fmt::format(
            "{}: {} bytes behind the {} x {} numbers of its header; accepted: "
            "one array a file",
            name,
            there - used,
            array.rows,
            array.columns));
  }
  return array;
}

class Npy : public TableFile {
 public:
  Npy(os::Path path,
      Array array,
      int64_t label,
      std::optional<Array> labels,
      std::vector<std::string> features)
      : path_(std::move(path)),
        array_(std::move(array)),
        label_(label),
        labels_(std::move(labels)),
        features_(std::move(features)) {}
  const std::vector<std::string>& features() const override {
    return features_;
  }
  uint64_t num_rows() const override { return array_.rows; }
  bool has_label() const override { return label_ >= 0 || labels_; }
  std::string place(uint64_t row) const override {
    return fmt::format("{}: row {}", path_.string(), row);
  }
  Result<RowBlock> read(uint64_t first, size_t count) override {
    RowBlock block;
    if (first >= array_.rows) {
      return block;
    }
    block.rows = std::min<uint64_t>(count, array_.rows - first);
    block.features.resize(block.rows * features_.size());
    float* out = block.features.data();
    for (uint64_t row = first; row < first + block.rows; ++row) {
      if (array_.is_float && label_ < 0 && !array_.by_column) {
        std::memcpy(out, array_.place(row, 0), array_.columns * array_.size);
        out += array_.columns;
      } else {
        for (size_t c = 0; c < array_.columns; ++c) {
          const double value = array_.number(row, c);
          if (static_cast<int64_t>(c) == label_) {
            block.numbers.push_back(value);
          } else {
            *out++ = static_cast<float>(value);
          }
        }
      }
      if (labels_) {
        block.numbers.push_back(labels_->number(row, 0));
      }
    }
    return block;
  }

 private:
  os::Path path_;
  Array array_;
  int64_t label_;
  std::optional<Array> labels_;
  std::vector<std::string> features_;
};

// The column of the label, counted from the first.
Result<int64_t>
label_column(const os::Path& path, const std::string& label, int64_t columns) {
  // The default name is not a number: the last column then.
  const std::string text = label == "label" ? "-1" : label;
  int64_t column = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), column);
  if (error != std::errc() || end != text.data() + text.size() ||
      column < -columns || column >= columns) {
    return bad(
        fmt::format(
            "data.label={}: {} has columns 0 to {} (-1: the last), or name "
            "a .npy of labels",
            label,
            path.string(),
            columns - 1));
  }
  return column < 0 ? column + columns : column;
}

Result<Array>
open_labels(const os::Path& path, const std::string& label, uint64_t rows) {
  LOCKSTEP_ASSIGN(auto labels, open_array(label));
  if (labels.rows != rows || labels.columns != 1) {
    return bad(
        fmt::format(
            "data.label={}: {} x {} numbers for the {} rows of {}",
            label,
            labels.rows,
            labels.columns,
            rows,
            path.string()));
  }
  return labels;
}

std::vector<std::string> names_of(int64_t columns, int64_t label) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < columns; ++i) {
    if (i != label) {
      names.push_back(std::to_string(i));
    }
  }
  return names;
}

}  // namespace

Result<std::unique_ptr<TableFile>> open_npy(
    const os::Path& path,
    const TableOptions& options) {
  LOCKSTEP_ASSIGN(auto array, open_array(path));
  const auto columns = static_cast<int64_t>(array.columns);
  int64_t label = -1;
  std::optional<Array> labels;
  if (!options.label_required && options.only.size() == array.columns) {
    return std::make_unique<Npy>(
        path, std::move(array), label, std::move(labels), options.only);
  }
  if (is_label_file(options.label)) {
    LOCKSTEP_ASSIGN(labels, open_labels(path, options.label, array.rows));
  } else if (!options.label.empty()) {
    LOCKSTEP_ASSIGN(label, label_column(path, options.label, columns));
  }
  auto features = names_of(columns, label);
  if (features.empty()) {
    return bad(path.string() + ": no column but the label");
  }
  return std::make_unique<Npy>(
      path, std::move(array), label, std::move(labels), std::move(features));
}

}  // namespace lockstep::forest
