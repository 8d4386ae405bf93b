#include "lockstep/data/tolerant.h"

#include <fmt/format.h>

#include <mutex>
#include <optional>
#include <set>

#include "lockstep/base/log.h"

namespace lockstep::data {
namespace {

class Tolerant final : public Dataset {
 public:
  Tolerant(
      std::shared_ptr<const Dataset> dataset,
      const TolerantOptions& options)
      : dataset_(std::move(dataset)), options_(options) {}

  int64_t size() const override { return dataset_->size(); }
  int channels() const override { return dataset_->channels(); }
  Size image_size() const override { return dataset_->image_size(); }
  std::vector<std::string> classes() const override {
    return dataset_->classes();
  }
  // Of the image that read() gives; before it has been read, of its own.
  int64_t label(int64_t index) const override {
    return dataset_->label(good(index));
  }

  void read(int64_t index, RawImage& image) const override {
    while (true) {
      const int64_t chosen = good(index);
      const auto wrong = trouble(chosen, image);
      if (!wrong) {
        return;
      }
      pass_over(chosen, *wrong);
    }
  }

  std::vector<int64_t> passed_over() const override {
    const std::scoped_lock lock(mutex_);
    return {bad_.begin(), bad_.end()};
  }

  void add_passed_over(std::span<const int64_t> indices) const override {
    const std::scoped_lock lock(mutex_);
    bad_.insert(indices.begin(), indices.end());
    if (too_many()) {
      refuse("the first one: image " + dataset_->name(*bad_.begin()));
    }
  }

  std::string name(int64_t index) const override {
    return dataset_->name(index);
  }

 private:
  // What is wrong with an image; none when it has been read.
  std::optional<std::string> trouble(int64_t index, RawImage& image) const {
    try {
      dataset_->read(index, image);
    } catch (const DataError& failure) {
      return failure.what();
    }
    if (image.height < options_.min_height ||
        image.width < options_.min_width) {
      return fmt::format(
          "image {} is too small: {} x {} pixels; at least {} x {}",
          dataset_->name(index),
          image.width,
          image.height,
          options_.min_width,
          options_.min_height);
    }
    return std::nullopt;
  }

  // The first image from `index` on that is not known to be bad.
  int64_t good(int64_t index) const {
    const std::scoped_lock lock(mutex_);
    while (bad_.contains(index)) {
      index = (index + 1) % dataset_->size();
    }
    return index;
  }

  void pass_over(int64_t index, const std::string& wrong) const {
    const std::scoped_lock lock(mutex_);
    if (!bad_.insert(index).second) {
      return;
    }
    if (too_many()) {
      refuse("the last one: " + wrong, index);
    }
    log_warning(fmt::format("passed over: {}", wrong));
  }

  bool too_many() const {
    const auto allowed = options_.share * static_cast<double>(dataset_->size());
    return static_cast<double>(bad_.size()) > allowed ||
           bad_.size() == static_cast<size_t>(size());
  }

  // `last` is forgotten: the next read finds it again.
  [[noreturn]] void refuse(
      const std::string& one,
      std::optional<int64_t> last = std::nullopt) const {
    const size_t found = bad_.size();
    if (last) {
      bad_.erase(*last);
    }
    throw DataError(
        fmt::format(
            "{} of {} images are no good, more than the share of {} that may "
            "be passed over (data.max_skipped); {}",
            found,
            dataset_->size(),
            options_.share,
            one));
  }

  std::shared_ptr<const Dataset> dataset_;
  TolerantOptions options_;
  mutable std::mutex mutex_;
  mutable std::set<int64_t> bad_;
};

}  // namespace

std::unique_ptr<Dataset> tolerate(
    std::shared_ptr<const Dataset> dataset,
    const TolerantOptions& options) {
  return std::make_unique<Tolerant>(std::move(dataset), options);
}

}  // namespace lockstep::data
