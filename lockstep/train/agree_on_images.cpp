#include "lockstep/train/agree_on_images.h"

#include <algorithm>

namespace lockstep::train {
namespace {

// A data set's place in the list, and an image in it.
struct Passed {
  int64_t set = -1;  // negative: nothing
  int64_t image = 0;
};

std::vector<Passed> own(const Datasets& datasets) {
  std::vector<Passed> all;
  for (size_t i = 0; i < datasets.size(); ++i) {
    if (datasets[i]) {
      for (const int64_t image : datasets[i]->passed_over()) {
        all.push_back({static_cast<int64_t>(i), image});
      }
    }
  }
  return all;
}

// Every rank's, each padded to the longest.
std::vector<Passed> gathered(
    std::vector<Passed> ours,
    collective::Communicator& group) {
  auto longest = static_cast<int64_t>(ours.size());
  group.all_reduce(
      &longest, 1, collective::DataType::kInt64, collective::ReduceOp::kMax);
  const auto each = static_cast<size_t>(longest);
  std::vector<Passed> all(each * static_cast<size_t>(group.size()));
  if (each == 0) {
    return all;
  }
  std::ranges::copy(
      ours, all.begin() + static_cast<int64_t>(each) * group.rank());
  group.all_gather(
      all.data(),
      each * sizeof(Passed) / sizeof(int64_t),
      collective::DataType::kInt64);
  return all;
}

}  // namespace

void agree_on_images(
    const Datasets& datasets,
    collective::Communicator& group) {
  const auto all = gathered(own(datasets), group);
  for (size_t i = 0; i < datasets.size(); ++i) {
    std::vector<int64_t> images;
    for (const auto& passed : all) {
      if (passed.set == static_cast<int64_t>(i)) {
        images.push_back(passed.image);
      }
    }
    if (!images.empty() && datasets[i]) {
      datasets[i]->add_passed_over(images);
    }
  }
}

}  // namespace lockstep::train
