#include "lockstep/data/resize.h"

#include <fmt/format.h>

#include <cstring>
#include <unordered_map>
#include <vector>

#include "lockstep/data/resize_weights.h"

// One body compiled for several instruction sets, chosen when the program is
// loaded. Sanitizers are not ready that early, so they get the plain one.
#if defined(__x86_64__) && defined(__OPTIMIZE__) && \
    !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define LOCKSTEP_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LOCKSTEP_CLONES
#endif

namespace lockstep::data {
namespace {

// Four floats at any address: a pixel of three channels and one to spare.
typedef float Float4 __attribute__((vector_size(16), aligned(4), may_alias));

constexpr size_t kPad = 4;  // floats after a row that Float4 may touch
constexpr size_t kMaxAxes = 64;

LOCKSTEP_CLONES
void convert(
    const uint8_t* source,
    const float* scale,
    const float* bias,
    size_t count,
    float* target) {
  for (size_t i = 0; i < count; ++i) {
    target[i] = static_cast<float>(source[i]) * scale[i] + bias[i];
  }
}

LOCKSTEP_CLONES
void scale_in_place(
    const float* scale,
    const float* bias,
    size_t count,
    float* row) {
  for (size_t i = 0; i < count; ++i) {
    row[i] = row[i] * scale[i] + bias[i];
  }
}

// Reads four floats at each tap, so the source row needs kPad behind it. The
// fourth result is overwritten by the next pixel; the last pixel writes three.
LOCKSTEP_CLONES
void across_rgb(const float* source, const Axis& axis, float* target) {
  const int taps = axis.taps;
  const float* weights = axis.weights.data();
  const int* first = axis.first.data();
  Float4 sum{};
  for (int x = 0; x < axis.output; ++x) {
    const float* from = source + static_cast<std::ptrdiff_t>(first[x]) * 3;
    sum = *reinterpret_cast<const Float4*>(from) * weights[0];
    for (int k = 1; k < taps; ++k) {
      sum += *reinterpret_cast<const Float4*>(from + k * 3) * weights[k];
    }
    weights += taps;
    if (x + 1 < axis.output) {
      *reinterpret_cast<Float4*>(target + static_cast<std::ptrdiff_t>(x) * 3) =
          sum;
    }
  }
  std::memcpy(
      target + static_cast<std::ptrdiff_t>(axis.output - 1) * 3,
      &sum,
      3 * sizeof(float));
}

LOCKSTEP_CLONES
void across_gray(const float* source, const Axis& axis, float* target) {
  const int taps = axis.taps;
  const float* weights = axis.weights.data();
  for (int x = 0; x < axis.output; ++x) {
    const float* from = source + axis.first[static_cast<size_t>(x)];
    float sum = from[0] * weights[0];
    for (int k = 1; k < taps; ++k) {
      sum += from[k] * weights[k];
    }
    weights += taps;
    target[x] = sum;
  }
}

// Rows `stride` apart, weighted: two and four taps (enlarging) in one sweep.
LOCKSTEP_CLONES
void down(
    const float* rows,
    size_t stride,
    const float* weights,
    int taps,
    size_t count,
    float* __restrict target) {
  if (taps == 2) {
    const float* second = rows + stride;
    for (size_t i = 0; i < count; ++i) {
      target[i] = rows[i] * weights[0] + second[i] * weights[1];
    }
    return;
  }
  if (taps == 4) {
    const float* b = rows + stride;
    const float* c = b + stride;
    const float* d = c + stride;
    for (size_t i = 0; i < count; ++i) {
      target[i] = rows[i] * weights[0] + b[i] * weights[1] + c[i] * weights[2] +
                  d[i] * weights[3];
    }
    return;
  }
  for (size_t i = 0; i < count; ++i) {
    target[i] = rows[i] * weights[0];
  }
  for (int k = 1; k < taps; ++k) {
    const float* row = rows + static_cast<size_t>(k) * stride;
    for (size_t i = 0; i < count; ++i) {
      target[i] += row[i] * weights[k];
    }
  }
}

// The same from 8-bit rows, for shrinking: four taps a sweep.
LOCKSTEP_CLONES
void down_bytes(
    const uint8_t* rows,
    size_t stride,
    const float* weights,
    int taps,
    size_t count,
    float* __restrict target) {
  std::memset(target, 0, count * sizeof(float));
  int k = 0;
  for (; k + 4 <= taps; k += 4) {
    const uint8_t* a = rows + static_cast<size_t>(k) * stride;
    const uint8_t* b = a + stride;
    const uint8_t* c = b + stride;
    const uint8_t* d = c + stride;
    for (size_t i = 0; i < count; ++i) {
      target[i] += static_cast<float>(a[i]) * weights[k] +
                   static_cast<float>(b[i]) * weights[k + 1] +
                   static_cast<float>(c[i]) * weights[k + 2] +
                   static_cast<float>(d[i]) * weights[k + 3];
    }
  }
  for (; k < taps; ++k) {
    const uint8_t* a = rows + static_cast<size_t>(k) * stride;
    for (size_t i = 0; i < count; ++i) {
      target[i] += static_cast<float>(a[i]) * weights[k];
    }
  }
}

LOCKSTEP_CLONES
void split_planes(
    const float* row,
    size_t width,
    size_t plane,
    float* __restrict target) {
  float* __restrict green = target + plane;
  float* __restrict blue = green + plane;
  for (size_t x = 0; x < width; ++x) {
    target[x] = row[x * 3];
    green[x] = row[x * 3 + 1];
    blue[x] = row[x * 3 + 2];
  }
}

class AxisCache {
 public:
  const Axis& get(int input, int output, Resize resize, bool mirror) {
    // A folder of images may hold any number of sizes.
    if (axes_.size() > kMaxAxes) {
      axes_.clear();
    }
    const int64_t key = static_cast<int64_t>(input) * 2 + (mirror ? 1 : 0);
    auto [found, fresh] = axes_.try_emplace(key);
    if (fresh) {
      Axis axis = make_axis(input, output, resize);
      found->second = mirror ? mirrored(axis) : std::move(axis);
    }
    return found->second;
  }

 private:
  std::unordered_map<int64_t, Axis> axes_;
};

}  // namespace

struct Resizer::Impl {
  ResizeOptions options;
  AxisCache across_axes;
  AxisCache down_axes;
  // (p / 255 - mean) / std = p * scale + bias, repeated over a source row.
  std::vector<float> scale;
  std::vector<float> bias;
  int scale_channels = 0;
  std::vector<float> source_row;
  std::vector<float> output_row;
  std::vector<float> middle;

  void prepare_scale(int width, int channels) {
    const auto count =
        static_cast<size_t>(width) * static_cast<size_t>(channels);
    if (scale_channels == channels && scale.size() >= count) {
      return;
    }
    scale.resize(count);
    bias.resize(count);
    scale_channels = channels;
    for (size_t i = 0; i < count; ++i) {
      const size_t c = i % static_cast<size_t>(channels);
      scale[i] = static_cast<float>(1.0 / (255.0 * options.stddev[c]));
      bias[i] = static_cast<float>(
          -static_cast<double>(options.mean[c]) / options.stddev[c]);
    }
  }
};

Resizer::Resizer(const ResizeOptions& options)
    : impl_(std::make_unique<Impl>()) {
  if (options.height < 1 || options.width < 1) {
    throw DataError(
        fmt::format(
            "image size {} x {}: both must be at least 1",
            options.height,
            options.width));
  }
  for (float value : options.stddev) {
    if (!(value > 0)) {
      throw DataError(
          fmt::format("standard deviation {}: must be above 0", value));
    }
  }
  impl_->options = options;
}

Resizer::~Resizer() = default;

void Resizer::run(const RawImage& image, bool flip, float* output) {
  Impl& state = *impl_;
  const ResizeOptions& options = state.options;
  const bool rgb = image.channels == 3;
  const auto channels = static_cast<size_t>(image.channels);
  const size_t input_row = static_cast<size_t>(image.width) * channels;
  const size_t output_row = static_cast<size_t>(options.width) * channels;
  const auto input_height = static_cast<size_t>(image.height);
  const auto output_height = static_cast<size_t>(options.height);
  if (!(rgb || image.channels == 1) || image.height < 1 || image.width < 1 ||
      image.pixels.size() < input_height * input_row) {
    throw DataError(
        fmt::format(
            "cannot resize an image of {} x {} with {} channels",
            image.height,
            image.width,
            image.channels));
  }
  state.prepare_scale(image.width, image.channels);
  state.source_row.resize(std::max(state.source_row.size(), input_row + kPad));
  const bool across = flip || image.width != options.width;
  const Axis* columns =
      across ? &state.across_axes.get(
                   image.width, options.width, options.resize, flip)
             : nullptr;
  const bool planes = rgb && !options.channels_last;
  state.output_row.resize(std::max(state.output_row.size(), output_row + kPad));
  const uint8_t* pixels = image.pixels.data();
  const float* scale = state.scale.data();
  const float* bias = state.bias.data();

  auto target_of = [&](size_t y) {
    return planes ? state.output_row.data() : output + y * output_row;
  };
  auto finish = [&](size_t y) {
    if (planes) {
      const size_t width = static_cast<size_t>(options.width);
      split_planes(
          state.output_row.data(),
          width,
          width * output_height,
          output + y * width);
    }
  };
  auto row_across = [&](const float* source, float* target) {
    if (rgb) {
      across_rgb(source, *columns, target);
    } else {
      across_gray(source, *columns, target);
    }
  };
  auto convert_across = [&](size_t y, float* target) {
    const uint8_t* row = pixels + y * input_row;
    float* converted = across ? state.source_row.data() : target;
    convert(row, scale, bias, input_row, converted);
    if (across) {
      row_across(converted, target);
    }
  };

  if (input_height == output_height) {
    for (size_t y = 0; y < output_height; ++y) {
      convert_across(y, target_of(y));
      finish(y);
    }
    return;
  }
  const Axis& rows =
      state.down_axes.get(image.height, options.height, options.resize, false);
  const auto taps = static_cast<size_t>(rows.taps);
  if (input_height < output_height) {
    // Enlarging: first across, over the fewer rows; then down.
    const size_t stride = output_row;
    state.middle.resize(
        std::max(state.middle.size(), input_height * stride + kPad));
    for (size_t y = 0; y < input_height; ++y) {
      convert_across(y, state.middle.data() + y * stride);
    }
    for (size_t y = 0; y < output_height; ++y) {
      down(
          state.middle.data() + static_cast<size_t>(rows.first[y]) * stride,
          stride,
          &rows.weights[y * taps],
          rows.taps,
          output_row,
          target_of(y));
      finish(y);
    }
    return;
  }
  // Shrinking: first down, straight from the bytes.
  for (size_t y = 0; y < output_height; ++y) {
    float* target = target_of(y);
    float* narrowed = across ? state.source_row.data() : target;
    down_bytes(
        pixels + static_cast<size_t>(rows.first[y]) * input_row,
        input_row,
        &rows.weights[y * taps],
        rows.taps,
        input_row,
        narrowed);
    scale_in_place(scale, bias, input_row, narrowed);
    if (across) {
      row_across(narrowed, target);
    }
    finish(y);
  }
}

}  // namespace lockstep::data
