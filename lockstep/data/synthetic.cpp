#include "lockstep/data/synthetic.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "lockstep/data/random.h"

namespace lockstep::data {
namespace {

constexpr int kMaxSide = 4096;
constexpr int kMaxClasses = 1000;
constexpr size_t kTurn = 256;  // steps of a whole wave

// 128 +- 80, so that the noise of +- 32 never leaves a byte's range.
std::array<uint8_t, kTurn> make_wave() {
  std::array<uint8_t, kTurn> wave{};
  for (size_t i = 0; i < kTurn; ++i) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(i) / kTurn;
    wave[i] = static_cast<uint8_t>(std::lround(96 + 80 * std::sin(angle)));
  }
  return wave;
}

class Synthetic final : public Dataset {
 public:
  explicit Synthetic(const DatasetOptions& options)
      : options_(options),
        size_(
            options.limit > 0 ? std::min(options.limit, options.length)
                              : options.length),
        key_(stream_key(options.seed, options.train ? 1 : 2)) {}

  int64_t size() const override { return size_; }
  int channels() const override { return options_.channels; }
  Size image_size() const override {
    return {options_.image_size, options_.image_size};
  }
  std::vector<std::string> classes() const override {
    std::vector<std::string> names;
    for (int i = 0; i < options_.num_classes; ++i) {
      names.push_back(fmt::format("class {}", i));
    }
    return names;
  }
  int64_t label(int64_t index) const override {
    return static_cast<int64_t>(
        below(sample_key(index), static_cast<uint64_t>(options_.num_classes)));
  }

  void read(int64_t index, RawImage& image) const override {
    const auto side = static_cast<size_t>(options_.image_size);
    const auto channels = static_cast<size_t>(options_.channels);
    const size_t count = side * side * channels;
    const uint64_t key = mix64(sample_key(index));
    image.height = options_.image_size;
    image.width = options_.image_size;
    image.channels = options_.channels;
    image.storage.resize(count);
    uint8_t* pixels = image.storage.data();
    fill_noise(key, image.storage);
    const Shape shape = shape_of(label(index));
    const auto place = static_cast<unsigned>(stream_value(key, 0) >> 60);
    for (size_t y = 0; y < side; ++y) {
      for (size_t c = 0; c < channels; ++c) {
        unsigned phase = shape.down * static_cast<unsigned>(y) +
                         shape.colour[c] + (place << 10);
        uint8_t* row = pixels + y * side * channels + c;
        for (size_t x = 0; x < side; ++x) {
          row[x * channels] = static_cast<uint8_t>(
              row[x * channels] + wave_[(phase >> 8) % kTurn]);
          phase += shape.across;
        }
      }
    }
    image.pixels = image.storage;
  }

 private:
  // Steps in 1/256 of the wave's table a pixel.
  struct Shape {
    unsigned across;
    unsigned down;
    std::array<unsigned, 3> colour;
  };

  uint64_t sample_key(int64_t index) const {
    return stream_value(key_, static_cast<uint64_t>(index));
  }

  Shape shape_of(int64_t label) const {
    // Directions spread over half a turn; lengths from 1/2 to 1/5 image.
    const double angle =
        std::numbers::pi * static_cast<double>(label) / options_.num_classes;
    const double waves = 2.0 + static_cast<double>(label % 4);
    const double step = waves * 256.0 * 256.0 / options_.image_size;
    Shape shape{};
    shape.across =
        static_cast<unsigned>(static_cast<int>(step * std::cos(angle)));
    shape.down =
        static_cast<unsigned>(static_cast<int>(step * std::sin(angle)));
    for (size_t c = 0; c < 3; ++c) {
      const uint64_t random = stream_value(
          stream_key(options_.seed, 3, static_cast<uint64_t>(label)), c);
      shape.colour[c] = static_cast<unsigned>(random & 0xffff);
    }
    return shape;
  }

  // 0 to 63 a byte, eight bytes a draw.
  static void fill_noise(uint64_t key, std::vector<uint8_t>& bytes) {
    constexpr uint64_t kMask = 0x3f3f3f3f3f3f3f3fULL;
    size_t i = 0;
    for (uint64_t draw = 1; i + 8 <= bytes.size(); i += 8, ++draw) {
      const uint64_t value = stream_value(key, draw) & kMask;
      std::memcpy(bytes.data() + i, &value, 8);
    }
    for (uint64_t value = stream_value(key, ~uint64_t{0}) & kMask;
         i < bytes.size();
         ++i, value >>= 8) {
      bytes[i] = static_cast<uint8_t>(value & 0xff);
    }
  }

  DatasetOptions options_;
  int64_t size_;
  uint64_t key_;
  std::array<uint8_t, kTurn> wave_ = make_wave();
};

void expect(bool good, const char* key, int64_t value, const char* accepted) {
  if (!good) {
    throw DataError(
        fmt::format(
            "synthetic data: {} = {}; accepted: {}", key, value, accepted));
  }
}

}  // namespace

std::unique_ptr<Dataset> make_synthetic(const DatasetOptions& options) {
  expect(options.length > 0, "length", options.length, "1 and more");
  expect(
      options.image_size >= 1 && options.image_size <= kMaxSide,
      "image_size",
      options.image_size,
      "1 to 4096");
  expect(
      options.channels == 1 || options.channels == 3,
      "channels",
      options.channels,
      "1, 3");
  expect(
      options.num_classes >= 1 && options.num_classes <= kMaxClasses,
      "num_classes",
      options.num_classes,
      "1 to 1000");
  return std::make_unique<Synthetic>(options);
}

}  // namespace lockstep::data
