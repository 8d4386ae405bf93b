#include "lockstep/data/cifar10.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/base/check.h"
#include "lockstep/base/log.h"
#include "lockstep/data/array_dataset.h"
#include "lockstep/data/byte_stream.h"
#include "lockstep/data/decode.h"
#include "lockstep/data/pickle.h"
#include "lockstep/os/file.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 32;
constexpr size_t kPlane = size_t{kSide} * kSide;
constexpr size_t kImage = kPlane * 3;
constexpr size_t kRecord = kImage + 1;  // label, then red, green, blue planes
constexpr size_t kOfficial = 10'000;    // images a file

const std::vector<std::string>& class_names() {
  static const std::vector<std::string> names = {
      "airplane",
      "automobile",
      "bird",
      "cat",
      "deer",
      "dog",
      "frog",
      "horse",
      "ship",
      "truck"};
  return names;
}

// The two official layouts: files stay mapped, so that the ranks of a machine
// share them and opening costs next to nothing; read() interleaves the planes.
class PlanarDataset final : public Dataset {
 public:
  struct Block {
    os::MappedFile file;
    const uint8_t* images = nullptr;  // of the first one
    size_t stride = 0;                // from one to the next
    std::vector<uint8_t> labels;
    std::vector<uint8_t> owned{};  // where the file has no plain images
  };

  // True when no more are wanted.
  bool add(Block block, int64_t limit) {
    const auto room = limit == 0 ? block.labels.size()
                                 : static_cast<size_t>(limit) - labels_.size();
    const size_t count = std::min(block.labels.size(), room);
    labels_.insert(
        labels_.end(),
        block.labels.begin(),
        block.labels.begin() + static_cast<std::ptrdiff_t>(count));
    for (size_t i = 0; i < count; ++i) {
      images_.push_back(block.images + i * block.stride);
    }
    files_.push_back(std::move(block.file));
    owned_.push_back(std::move(block.owned));
    return limit != 0 && labels_.size() == static_cast<size_t>(limit);
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int channels() const override { return 3; }
  Size image_size() const override { return {kSide, kSide}; }
  std::vector<std::string> classes() const override { return class_names(); }
  int64_t label(int64_t index) const override {
    return labels_.at(static_cast<size_t>(index));
  }
  void read(int64_t index, RawImage& image) const override {
    LOCKSTEP_CHECK(index >= 0 && index < size());
    const uint8_t* red = images_[static_cast<size_t>(index)];
    image.height = kSide;
    image.width = kSide;
    image.channels = 3;
    image.storage.resize(kImage);
    uint8_t* __restrict target = image.storage.data();
    for (size_t i = 0; i < kPlane; ++i) {
      target[i * 3] = red[i];
      target[i * 3 + 1] = red[i + kPlane];
      target[i * 3 + 2] = red[i + 2 * kPlane];
    }
    image.pixels = image.storage;
  }

 private:
  std::vector<os::MappedFile> files_;
  std::vector<std::vector<uint8_t>> owned_;
  std::vector<const uint8_t*> images_;
  std::vector<uint8_t> labels_;
};

struct Mapped {
  os::MappedFile file;
  std::span<const uint8_t> bytes;
};

Mapped map(const std::string& path) {
  auto file = os::MappedFile::open(path);
  if (!file) {
    throw DataError(file.error().to_string());
  }
  const std::span<const std::byte> bytes = file->bytes();
  return {
      std::move(*file),
      {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}};
}

void note_count(const std::string& path, size_t count) {
  if (count != kOfficial) {
    log_warning(
        fmt::format(
            "{} holds {} images; the official file {}",
            path,
            count,
            kOfficial));
  }
}

PlanarDataset::Block read_binary(const std::string& path) {
  Mapped mapped = map(path);
  const size_t size = mapped.bytes.size();
  if (size == 0 || size % kRecord != 0) {
    throw DataError(
        fmt::format(
            "{}: truncated or no CIFAR-10 file: {} bytes are no multiple of "
            "the {} of an image",
            path,
            size,
            kRecord));
  }
  const uint8_t* data = mapped.bytes.data();
  PlanarDataset::Block block{std::move(mapped.file), data + 1, kRecord, {}};
  block.labels.resize(size / kRecord);
  for (size_t i = 0; i < block.labels.size(); ++i) {
    block.labels[i] = data[i * kRecord];
  }
  return block;
}

PlanarDataset::Block read_pickle(const std::string& path) {
  Mapped mapped = map(path);
  PickledBatch batch = read_pickled_batch(mapped.bytes, path);
  const auto rows = static_cast<size_t>(batch.rows);
  if (batch.columns != static_cast<int64_t>(kImage) ||
      batch.labels.size() != rows) {
    throw DataError(
        fmt::format(
            "{}: {} images of {} bytes and {} labels; expected {} bytes an "
            "image and as many labels as images",
            path,
            batch.rows,
            batch.columns,
            batch.labels.size(),
            kImage));
  }
  return {
      std::move(mapped.file),
      batch.data.data(),
      kImage,
      std::move(batch.labels),
      std::move(batch.owned)};
}

std::vector<std::string> file_names(bool train, const std::string& ending) {
  if (!train) {
    return {"test_batch" + ending};
  }
  std::vector<std::string> names;
  for (int i = 1; i <= 5; ++i) {
    names.push_back(fmt::format("data_batch_{}{}", i, ending));
  }
  return names;
}

std::unique_ptr<Dataset>
open_planar(const std::string& folder, bool train, int64_t limit, bool binary) {
  auto dataset = std::make_unique<PlanarDataset>();
  for (const std::string& name : file_names(train, binary ? ".bin" : "")) {
    const std::string path = folder + "/" + name;
    PlanarDataset::Block block = binary ? read_binary(path) : read_pickle(path);
    check_labels(block.labels, class_names().size(), path);
    note_count(path, block.labels.size());
    if (dataset->add(std::move(block), limit)) {
      break;
    }
  }
  return dataset;
}

// For a message. Lists in lists are not written out: dump() calls itself for
// each level.
std::string shown(const nlohmann::json& label) {
  if (label.is_structured()) {
    return label.is_array() ? "[...]" : "{...}";
  }
  return label.dump().substr(0, 40);
}

std::vector<uint8_t> read_json_labels(const std::string& path) {
  const std::vector<uint8_t> text = read_file(path);
  const auto json = nlohmann::json::parse(
      text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_array()) {
    throw DataError(fmt::format("{}: expected a JSON list of labels", path));
  }
  std::vector<uint8_t> labels;
  labels.reserve(json.size());
  for (const auto& item : json) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > 9) {
      throw DataError(
          fmt::format(
              "{}: label {} of image {} is out of range: 0 to 9",
              path,
              shown(item),
              labels.size()));
    }
    labels.push_back(item.get<uint8_t>());
  }
  return labels;
}

// The package's own spelling, and the right one.
std::string labels_path(const std::string& folder, bool train) {
  const std::string split = train ? "train" : "test";
  const std::string path = fmt::format("{}/{}_lables.json", folder, split);
  const std::string other = fmt::format("{}/{}_labels.json", folder, split);
  std::error_code ignored;
  return !fs::exists(path, ignored) && fs::exists(other, ignored) ? other
                                                                  : path;
}

std::unique_ptr<Dataset>
open_sheets(const std::string& folder, bool train, int64_t limit) {
  ImageArray images;
  images.height = kSide;
  images.width = kSide;
  images.channels = 3;
  images.classes = class_names();
  const std::string where = labels_path(folder, train);
  images.labels = read_json_labels(where);
  const size_t all = images.labels.size();
  const size_t wanted =
      limit > 0 ? std::min(all, static_cast<size_t>(limit)) : all;
  images.pixels.reserve(wanted * kImage);
  RawImage sheet;
  size_t count = 0;
  for (const std::string& name : file_names(train, ".png")) {
    if (count >= wanted && limit > 0) {
      break;
    }
    const std::string path = folder + "/" + name;
    decode_png(read_file(path), path, sheet);
    if (sheet.width != static_cast<int>(kPlane)) {
      throw DataError(
          fmt::format(
              "{}: {} pixels wide; a row of {} is an image of CIFAR-10",
              path,
              sheet.width,
              kPlane));
    }
    note_count(path, static_cast<size_t>(sheet.height));
    count += static_cast<size_t>(sheet.height);
    images.pixels.insert(
        images.pixels.end(), sheet.storage.begin(), sheet.storage.end());
  }
  if (count < wanted || (limit == 0 && count != all)) {
    throw DataError(
        fmt::format("{}: {} labels for {} images", where, all, count));
  }
  images.pixels.resize(wanted * kImage);
  images.labels.resize(wanted);
  return std::make_unique<ArrayDataset>(std::move(images));
}

// Which of a layout's files a folder holds: all, none, or an error.
bool holds(const std::string& folder, bool train, const std::string& ending) {
  std::optional<std::string> missing;
  bool some = false;
  for (const std::string& name : file_names(train, ending)) {
    std::error_code ignored;
    if (fs::is_regular_file(folder + "/" + name, ignored)) {
      some = true;
    } else if (!missing) {
      missing = name;
    }
  }
  if (some && missing) {
    throw DataError(
        fmt::format(
            "{}/{} is missing, though others of its kind are there; fetch "
            "the set again: lockstep data get cifar10",
            folder,
            *missing));
  }
  return some;
}

}  // namespace

std::unique_ptr<Dataset> open_cifar10(
    const std::vector<std::string>& folders,
    bool train,
    int64_t limit) {
  for (const std::string& folder : folders) {
    if (holds(folder, train, ".bin")) {
      return open_planar(folder, train, limit, true);
    }
    if (holds(folder, train, "")) {
      return open_planar(folder, train, limit, false);
    }
    if (holds(folder, train, ".png")) {
      return open_sheets(folder, train, limit);
    }
  }
  return nullptr;
}

}  // namespace lockstep::data
