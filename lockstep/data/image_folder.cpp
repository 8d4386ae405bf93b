#include "lockstep/data/image_folder.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "lockstep/base/log.h"
#include "lockstep/data/byte_stream.h"
#include "lockstep/data/decode.h"

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

struct Entry {
  std::string path;
  int64_t label;
};

class ImageFolder final : public Dataset {
 public:
  ImageFolder(std::vector<Entry> entries, std::vector<std::string> classes)
      : entries_(std::move(entries)), classes_(std::move(classes)) {}
  int64_t size() const override {
    return static_cast<int64_t>(entries_.size());
  }
  int channels() const override { return 3; }
  std::vector<std::string> classes() const override { return classes_; }
  int64_t label(int64_t index) const override {
    return entries_.at(static_cast<size_t>(index)).label;
  }
  void read(int64_t index, RawImage& image) const override {
    const Entry& entry = entries_.at(static_cast<size_t>(index));
    decode_image(read_file(entry.path), entry.path, image);
  }
  std::string name(int64_t index) const override {
    return entries_.at(static_cast<size_t>(index)).path;
  }

 private:
  std::vector<Entry> entries_;
  std::vector<std::string> classes_;
};

bool hidden(const fs::path& path) {
  return path.filename().string().starts_with('.');
}

// What was passed over, for one warning.
struct Skipped {
  int64_t count = 0;
  std::string first;
  void add(const fs::path& path) {
    if (count++ == 0) {
      first = path.string();
    }
  }
};

std::vector<fs::path> sorted_entries(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (!hidden(it->path())) {
      paths.push_back(it->path());
    }
  }
  if (error) {
    throw DataError(
        fmt::format("cannot read {}: {}", folder.string(), error.message()));
  }
  std::ranges::sort(paths);
  return paths;
}

// By which a folder is known, whatever links lead to it.
using Place = std::pair<dev_t, ino_t>;

Place place_of(const fs::path& folder) {
  struct stat facts{};
  if (::stat(folder.c_str(), &facts) != 0) {
    return {};
  }
  return {facts.st_dev, facts.st_ino};
}

// A folder and all that it lies in.
std::vector<Place> places_above(const fs::path& folder) {
  std::error_code error;
  fs::path path = fs::canonical(folder, error);
  std::vector<Place> places = {place_of(path)};
  for (; path.has_relative_path(); path = path.parent_path()) {
    places.push_back(place_of(path.parent_path()));
  }
  return places;
}

// `above`: the folders on the way here. A link to one of them repeats images.
void collect(
    const fs::path& folder,
    int64_t label,
    std::vector<Entry>& entries,
    Skipped& skipped,
    std::vector<Place>& above) {
  const Place here = place_of(folder);
  if (std::ranges::find(above, here) != above.end()) {
    skipped.add(folder);
    return;
  }
  above.push_back(here);
  for (const fs::path& path : sorted_entries(folder)) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      collect(path, label, entries, skipped, above);
    } else if (has_image_name(path)) {
      entries.push_back({path.string(), label});
    } else {
      skipped.add(path);
    }
  }
  above.pop_back();
}

bool holds_image(const fs::path& folder) {
  std::error_code error;
  for (fs::recursive_directory_iterator it(folder, error), end;
       !error && it != end;
       it.increment(error)) {
    if (!hidden(it->path()) && has_image_name(it->path())) {
      return true;
    }
  }
  return false;
}

bool is_held_out(const fs::path& path) {
  return path.filename() == "test" || path.filename() == "val";
}

// test/ or val/, else nothing.
fs::path held_out_folder(const fs::path& base) {
  std::error_code error;
  for (const char* name : {"test", "val"}) {
    if (fs::is_directory(base / name, error)) {
      return base / name;
    }
  }
  return {};
}

// `train`, with test images or alone, and no other folder of images.
bool is_only_split(const fs::path& base) {
  std::error_code error;
  return fs::is_directory(base / "train", error) &&
         std::ranges::none_of(sorted_entries(base), [&](const auto& path) {
           return path.filename() != "train" && !is_held_out(path) &&
                  fs::is_directory(path, error) && holds_image(path);
         });
}

// `train` may be a class, as in "bus, train, truck". It is the training part
// when test images lie beside it, or when it is all there is.
bool has_training_folder(const fs::path& base) {
  std::error_code error;
  return fs::is_directory(base / "train", error) &&
         (!held_out_folder(base).empty() || is_only_split(base));
}

fs::path split_folder(const std::string& root, bool train) {
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    throw DataError(
        fmt::format(
            "image folder {} is not there; set data.root to a folder with "
            "<class>/*.png or *.jpg",
            root));
  }
  const fs::path base(root);
  if (train) {
    return has_training_folder(base) ? base / "train" : base;
  }
  const auto held_out = held_out_folder(base);
  if (held_out.empty()) {
    throw DataError(
        fmt::format(
            "image folder {} has no test images: expected {}/train and {}/test",
            root,
            root,
            root));
  }
  return held_out;
}

// The images of `base`; `split`: its test images are passed over.
std::unique_ptr<Dataset>
open_folder(const fs::path& base, bool split, int64_t limit) {
  std::vector<Entry> flat;
  std::vector<Entry> entries;
  std::vector<std::string> classes;
  Skipped skipped;
  auto above = places_above(base);
  for (const fs::path& path : sorted_entries(base)) {
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) {
      if (split && is_held_out(path)) {
        continue;
      }
      const auto label = static_cast<int64_t>(classes.size());
      const size_t before = entries.size();
      collect(path, label, entries, skipped, above);
      if (entries.size() > before) {
        classes.push_back(path.filename().string());
      }
    } else if (has_image_name(path)) {
      flat.push_back({path.string(), 0});
    } else {
      skipped.add(path);
    }
  }
  if (entries.empty()) {
    entries = std::move(flat);
  } else if (!flat.empty()) {
    // Beside class folders an image has no class.
    for (const Entry& entry : flat) {
      skipped.add(entry.path);
    }
  }
  if (entries.empty()) {
    throw DataError(
        fmt::format(
            "no images in {}: expected <class>/*.png or *.jpg, or images "
            "right in it",
            base.string()));
  }
  if (skipped.count > 0) {
    log_warning(
        fmt::format(
            "{}: passed over {} files that are no images of a class, the "
            "first being {}",
            base.string(),
            skipped.count,
            skipped.first));
  }
  if (limit > 0 && entries.size() > static_cast<size_t>(limit)) {
    // They lie class by class: evenly over all, so that every class has some.
    std::vector<Entry> kept;
    for (size_t i = 0, wanted = static_cast<size_t>(limit); i < wanted; ++i) {
      kept.push_back(entries[i * entries.size() / wanted]);
    }
    entries = std::move(kept);
  }
  return std::make_unique<ImageFolder>(std::move(entries), std::move(classes));
}

}  // namespace

bool has_image_name(const fs::path& path) {
  std::string ending = path.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char c) {
    return static_cast<char>(std::tolower(c));
  });
  return ending == ".png" || ending == ".jpg" || ending == ".jpeg";
}

std::unique_ptr<Dataset>
open_image_folder(const std::string& root, bool train, int64_t limit) {
  const fs::path base = split_folder(root, train);
  // Where the training images lie in the root itself.
  return open_folder(base, train && base == fs::path(root), limit);
}

std::unique_ptr<Dataset> open_class_folders(
    const std::string& root,
    int64_t limit) {
  const fs::path base(root);
  return open_folder(
      is_only_split(base) ? base / "train" : base, /*split=*/false, limit);
}

}  // namespace lockstep::data
