#include "lockstep/data/tolerant.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <optional>

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
    if (!bad_.emplace(index, wrong).second) {
      return;
    }
    const auto allowed = options_.share * static_cast<double>(dataset_->size());
    const auto count = static_cast<double>(bad_.size());
    if (count > allowed || bad_.size() == static_cast<size_t>(size())) {
      const int64_t found = static_cast<int64_t>(bad_.size());
      bad_.erase(index);  // the next read finds it again
      throw DataError(
          fmt::format(
              "{} of {} images are no good, more than the share of {} that "
              "may be passed over (data.max_skipped); the last one: {}",
              found,
              dataset_->size(),
              options_.share,
              wrong));
    }
    log_warning(fmt::format("passed over: {}", wrong));
  }

  std::shared_ptr<const Dataset> dataset_;
  TolerantOptions options_;
  mutable std::mutex mutex_;
  mutable std::map<int64_t, std::string> bad_;
};

}  // namespace

std::unique_ptr<Dataset> tolerate(
    std::shared_ptr<const Dataset> dataset,
    const TolerantOptions& options) {
  return std::make_unique<Tolerant>(std::move(dataset), options);
}

}  // namespace lockstep::data
