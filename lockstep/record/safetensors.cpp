#include "lockstep/record/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "lockstep/record/safetensors_format.h"

namespace lockstep::record {

namespace {

Error corrupt(std::string what) {
  return Error(ErrorCode::kCorrupt, std::move(what));
}

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
};

// Reads the header as a stream: memory follows what is there, nesting is
// refused before it grows, and a repeated key is seen (a DOM would hide it).
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  Metadata metadata;
  std::string problem;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_float(double, const std::string&) override {
    return refuse("a fraction");
  }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool number_integer(int64_t) override { return refuse("a negative number"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(INT64_MAX)) {
        return fail("has an extent beyond 64 bits");
      }
      entries.back().shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      entries.back().offsets.push_back(value);
      return entries.back().offsets.size() <= 2 ||
             fail("has more than two data_offsets");
    }
    return refuse("a number");
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      metadata[field_] = value;
      return true;
    }
    if (place_ == Place::kTensor && field_ == "dtype") {
      entries.back().dtype = value;
      return true;
    }
    return refuse("a string");
  }

  bool start_object(size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ != Place::kTop) {
      return refuse("an object");
    }
    fields_.clear();
    if (name_ == kMetadataName) {
      place_ = Place::kMetadata;
    } else {
      place_ = Place::kTensor;
      entries.push_back({name_, "", {}, {}, false});
    }
    return true;
  }

  bool key(std::string& value) override {
    if (place_ == Place::kTop) {
      name_ = value;
      field_.clear();
      return names_.insert(value).second || fail("appears twice");
    }
    field_ = value;
    if (!fields_.insert(value).second) {
      return fail(fmt::format("has '{}' twice", shown(value)));
    }
    if (place_ == Place::kTensor && value != "dtype" && value != "shape" &&
        value != "data_offsets") {
      return fail(fmt::format("has an unknown field '{}'", shown(value)));
    }
    return true;
  }

  bool end_object() override {
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ == Place::kTensor && field_ == "shape") {
      entries.back().has_shape = true;
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && field_ == "data_offsets") {
      place_ = Place::kOffsets;
      return true;
    }
    return refuse("an array");
  }

  bool end_array() override {
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(
      size_t position,
      const std::string&,
      const nlohmann::json::exception&) override {
    problem = fmt::format(
        "the header is not JSON (byte {})", position + kLengthBytes);
    return false;
  }

 private:
  enum class Place {
    kStart,
    kTop,
    kMetadata,
    kTensor,
    kShape,
    kOffsets,
    kEnd,
  };

  bool fail(const std::string& what) {
    problem = fmt::format("tensor '{}' {}", shown(name_), what);
    return false;
  }

  bool refuse(std::string_view what) {
    if (place_ == Place::kStart) {
      problem = fmt::format("the header is {}, not an object", what);
    } else if (place_ == Place::kTop) {
      problem = fmt::format("'{}' is {}, not an object", shown(name_), what);
    } else if (place_ == Place::kMetadata) {
      problem = fmt::format(
          "metadata '{}' is {}; only strings are allowed", shown(field_), what);
    } else {
      return fail(fmt::format("has {} in '{}'", what, shown(field_)));
    }
    return false;
  }

  Place place_ = Place::kStart;
  std::string name_;
  std::string field_;
  std::unordered_set<std::string> names_;
  std::unordered_set<std::string> fields_;
};

Result<void> check_entry(const Entry& entry) {
  const std::string name = shown(entry.name);
  const size_t element = dtype_size(entry.dtype);
  if (element == 0) {
    return corrupt(
        fmt::format(
            "tensor '{}' has the unknown type '{}'", name, shown(entry.dtype)));
  }
  if (!entry.has_shape) {
    return corrupt(fmt::format("tensor '{}' has no shape", name));
  }
  if (entry.offsets.size() != 2) {
    return corrupt(fmt::format("tensor '{}' lacks its data_offsets", name));
  }
  if (entry.offsets[0] > entry.offsets[1]) {
    return corrupt(fmt::format("tensor '{}' ends before it starts", name));
  }
  const auto expected = byte_count(entry.shape, element);
  const uint64_t held = entry.offsets[1] - entry.offsets[0];
  if (!expected) {
    return corrupt(fmt::format("tensor '{}' is beyond 64 bits", name));
  }
  if (*expected != held) {
    return corrupt(
        fmt::format(
            "tensor '{}' has {} bytes, its shape and type need {}",
            name,
            held,
            *expected));
  }
  return {};
}

}  // namespace

std::string shown(const std::string& name) {
  constexpr size_t kMost = 80;
  return name.size() <= kMost ? name : name.substr(0, kMost) + "...";
}

std::optional<uint64_t> byte_count(
    const std::vector<int64_t>& shape,
    size_t element) {
  uint64_t total = element;
  for (const int64_t extent : shape) {
    if (extent < 0 ||
        __builtin_mul_overflow(total, static_cast<uint64_t>(extent), &total)) {
      return std::nullopt;
    }
  }
  return total;
}

size_t dtype_size(const std::string& dtype) {
  static constexpr std::pair<std::string_view, size_t> kSizes[] = {
      {"F32", 4},
      {"BF16", 2},
      {"F16", 2},
      {"F64", 8},
      {"I64", 8},
      {"I32", 4},
      {"I16", 2},
      {"I8", 1},
      {"U64", 8},
      {"U32", 4},
      {"U16", 2},
      {"U8", 1},
      {"BOOL", 1},
      {"F8_E5M2", 1},
      {"F8_E4M3", 1},
      {"F8_E8M0", 1},
      {"C64", 8},
  };
  for (const auto& [name, size] : kSizes) {
    if (name == dtype) {
      return size;
    }
  }
  return 0;
}

Result<void> parse_safetensors(
    std::span<const std::byte> bytes,
    std::vector<TensorView>& tensors,
    Metadata& metadata) {
  if (bytes.size() < kLengthBytes) {
    return corrupt(
        fmt::format(
            "{} bytes are too few for a safetensors file", bytes.size()));
  }
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  const auto rest = bytes.subspan(kLengthBytes);
  if (length > kMaxHeader) {
    return corrupt(
        fmt::format(
            "a header of {} bytes is announced; not a safetensors file",
            length));
  }
  if (length > rest.size()) {
    return corrupt(
        fmt::format(
            "the file is cut short: a header of {} bytes, {} are there",
            length,
            rest.size()));
  }
  const auto* text = reinterpret_cast<const char*>(rest.data());
  if (length == 0 || text[0] != '{') {
    return corrupt("the header does not start with '{'");
  }
  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, text + length, &reader)) {
    return corrupt(
        reader.problem.empty() ? "the header is not JSON" : reader.problem);
  }
  auto& entries = reader.entries;
  for (const Entry& entry : entries) {
    LOCKSTEP_TRY(check_entry(entry));
  }
  std::stable_sort(
      entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return a.offsets < b.offsets;
      });
  const auto data = rest.subspan(length);
  uint64_t at = 0;
  for (const Entry& entry : entries) {
    if (entry.offsets[0] != at) {
      return corrupt(
          fmt::format(
              "tensor '{}' starts at byte {}, {} was expected ({})",
              shown(entry.name),
              entry.offsets[0],
              at,
              entry.offsets[0] > at ? "a hole" : "an overlap"));
    }
    at = entry.offsets[1];
  }
  if (at != data.size()) {
    return corrupt(
        fmt::format(
            "the tensors need {} bytes of data, the file has {}{}",
            at,
            data.size(),
            at > data.size() ? " (cut short)" : ""));
  }
  std::vector<TensorView> views;
  views.reserve(entries.size());
  for (Entry& entry : entries) {
    const auto view =
        data.subspan(entry.offsets[0], entry.offsets[1] - entry.offsets[0]);
    views.push_back(
        {std::move(entry.name),
         std::move(entry.dtype),
         std::move(entry.shape),
         view});
  }
  tensors = std::move(views);
  metadata = std::move(reader.metadata);
  return {};
}

Result<SafetensorsFile> SafetensorsFile::open(const os::Path& path) {
  LOCKSTEP_ASSIGN(auto mapped, os::MappedFile::open(path));
  SafetensorsFile file(std::move(mapped));
  auto parsed =
      parse_safetensors(file.file_.bytes(), file.tensors_, file.metadata_);
  if (!parsed) {
    return std::move(parsed.error())
        .with_context(fmt::format("reading {}", path.string()));
  }
  if (auto whole = file.check_sum(); !whole) {
    return std::move(whole.error())
        .with_context(fmt::format("reading {}", path.string()));
  }
  for (size_t i = 0; i < file.tensors_.size(); ++i) {
    file.index_.emplace(file.tensors_[i].name, i);
  }
  return file;
}

const TensorView* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

}  // namespace lockstep::record
