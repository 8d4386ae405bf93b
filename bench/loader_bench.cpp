// Images a second of CPU time of the loader on one core, end to end: read,
// resize, normalise, stack into batches. One line a case: "name
// images_per_second". The process runs on one core; with no worker threads the
// consumer does all.
//   loader_bench FOLDER_OF_PNG FOLDER_OF_JPEG SECONDS

#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/loader.h"

namespace {

namespace data = lockstep::data;

// All images in memory, as CIFAR-10 and MNIST are.
class Memory final : public data::Dataset {
 public:
  Memory(int side, int channels)
      : side_(side),
        channels_(channels),
        bytes_(static_cast<size_t>(side * side * channels)),
        pixels_(bytes_ * kCount) {
    uint32_t state = 1;
    for (uint8_t& pixel : pixels_) {
      state = state * 1664525u + 1013904223u;
      pixel = static_cast<uint8_t>(state >> 24);
    }
  }
  int64_t size() const override { return kCount; }
  int channels() const override { return channels_; }
  std::vector<std::string> classes() const override { return {}; }
  int64_t label(int64_t) const override { return 0; }
  void read(int64_t index, data::RawImage& image) const override {
    image.height = image.width = side_;
    image.channels = channels_;
    image.pixels =
        std::span(pixels_).subspan(static_cast<size_t>(index) * bytes_, bytes_);
  }

 private:
  static constexpr int64_t kCount = 8192;
  int side_;
  int channels_;
  size_t bytes_;
  std::vector<uint8_t> pixels_;
};

// CPU seconds of this process: on an idle machine the wall clock's, and on a
// busy one what the core really spent on us.
double now() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_nsec) * 1e-9;
}

// The best of several rounds: other processes only ever take time away.
void measure(
    const char* name,
    std::shared_ptr<const data::Dataset> set,
    const data::LoaderOptions& options,
    double seconds) {
  data::Loader loader(std::move(set), options);
  double best = 0;
  constexpr int kRounds = 5;
  int64_t epoch = 0;
  loader.start(epoch);
  loader.next();  // weights and memory are made here
  for (int round = 0; round < kRounds; ++round) {
    int64_t images = 0;
    const double begun = now();
    while (now() - begun < seconds / kRounds) {
      if (auto batch = loader.next()) {
        images += batch->size;
      } else {
        loader.start(++epoch);
      }
    }
    best = std::max(best, static_cast<double>(images) / (now() - begun));
  }
  std::printf("%s %.0f\n", name, best);
  std::fflush(stdout);
}

std::shared_ptr<const data::Dataset> folder(const char* path) {
  data::DatasetOptions options;
  options.name = "folder";
  options.root = path;
  return data::open_dataset(options);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(
        stderr, "usage: loader_bench PNG_FOLDER JPEG_FOLDER SECONDS\n");
    return 2;
  }
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<size_t>(sched_getcpu()), &one);
  sched_setaffinity(0, sizeof(one), &one);
  const double seconds = std::atof(argv[3]);
  data::LoaderOptions options;
  options.batch_size = 32;
  options.workers = 0;
  const auto colour = std::make_shared<Memory>(32, 3);
  measure("rgb_32_to_64", colour, options, seconds);
  options.workers = 1;
  measure("rgb_32_to_64_worker", colour, options, seconds);
  options.workers = 0;
  options.channels_last = false;
  measure("rgb_32_to_64_planes", colour, options, seconds);
  options.resize = data::Resize::kBicubic;
  measure("rgb_32_to_64_bicubic", colour, options, seconds);
  options.resize = data::Resize::kBilinear;
  options.channels_last = true;
  options.image_size = 224;
  measure("rgb_32_to_224", colour, options, seconds);
  options.image_size = 64;
  measure("gray_28_to_64", std::make_shared<Memory>(28, 1), options, seconds);
  options.image_size = 128;
  measure("png_256_to_128", folder(argv[1]), options, seconds);
  measure("jpeg_256_to_128", folder(argv[2]), options, seconds);
  return 0;
}
