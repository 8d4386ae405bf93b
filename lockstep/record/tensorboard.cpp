#include "lockstep/record/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "lockstep/base/crc32c.h"
#include "lockstep/os/clock.h"
#include "lockstep/record/pending_file.h"

namespace lockstep::record {

namespace {

constexpr size_t kGather = size_t{64} << 10;

// The few parts of protocol buffers that summaries need.
class Message {
 public:
  void number(int field, uint64_t value) {
    tag(field, 0);
    varint(value);
  }
  void fixed(int field, double value) {
    tag(field, 1);
    raw(value);
  }
  void fixed(int field, float value) {
    tag(field, 5);
    raw(value);
  }
  void bytes(int field, std::string_view value) {
    tag(field, 2);
    varint(value.size());
    text_ += value;
  }
  void packed(int field, const std::vector<double>& values) {
    bytes(
        field,
        {reinterpret_cast<const char*>(values.data()),
         values.size() * sizeof(double)});
  }
  const std::string& text() const { return text_; }

 private:
  void tag(int field, int type) {
    varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(type));
  }
  void varint(uint64_t value) {
    while (value >= 0x80) {
      text_ += static_cast<char>(value | 0x80);
      value >>= 7;
    }
    text_ += static_cast<char>(value);
  }
  template <class Number>
  void raw(Number value) {
    std::array<char, sizeof(Number)> bytes{};
    std::memcpy(bytes.data(), &value, sizeof(Number));
    text_.append(bytes.data(), bytes.size());
  }
  std::string text_;
};

uint32_t masked_crc(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

template <class Number>
std::string_view bytes_of(const Number& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

std::string record_of(std::string_view data) {
  const uint64_t length = data.size();
  const uint32_t length_crc = masked_crc(bytes_of(length));
  const uint32_t data_crc = masked_crc(data);
  std::string text;
  text.reserve(data.size() + 16);
  text += bytes_of(length);
  text += bytes_of(length_crc);
  text += data;
  text += bytes_of(data_crc);
  return text;
}

std::string summary_event(
    const std::string& tag,
    const Message& fields,
    int64_t step,
    double time) {
  Message value;
  value.bytes(1, tag);
  Message summary;
  summary.bytes(1, value.text() + fields.text());
  Message event;
  event.fixed(1, time);
  event.number(2, static_cast<uint64_t>(step));
  event.bytes(5, summary.text());
  return record_of(event.text());
}

// Upper limits of TensorFlow's own buckets: 10% apart, both signs.
const std::vector<double>& bucket_limits() {
  static const std::vector<double> limits = [] {
    std::vector<double> positive;
    for (double limit = 1e-12; limit < 1e20; limit *= 1.1) {
      positive.push_back(limit);
    }
    std::vector<double> all;
    all.reserve(positive.size() * 2 + 2);
    for (auto it = positive.rbegin(); it != positive.rend(); ++it) {
      all.push_back(-*it);
    }
    all.push_back(0);
    all.insert(all.end(), positive.begin(), positive.end());
    all.push_back(std::numeric_limits<double>::max());
    return all;
  }();
  return limits;
}

Message histogram_message(std::span<const float> values) {
  const auto& limits = bucket_limits();
  std::vector<double> counts(limits.size(), 0);
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  double number = 0;
  double sum = 0;
  double squares = 0;
  for (const float single : values) {
    const auto value = static_cast<double>(single);
    if (!std::isfinite(value)) {
      continue;
    }
    // A bucket holds what is below its limit and not below the one before.
    const auto bucket = std::upper_bound(limits.begin(), limits.end(), value);
    ++counts[static_cast<size_t>(bucket - limits.begin())];
    least = std::min(least, value);
    most = std::max(most, value);
    ++number;
    sum += value;
    squares += value * value;
  }
  std::vector<double> kept_limits;
  std::vector<double> kept_counts;
  if (number == 0) {
    least = most = 0;
    kept_limits = {0};
    kept_counts = {0};
  } else {
    const auto full = [](double count) { return count > 0; };
    const auto first = std::find_if(counts.begin(), counts.end(), full);
    const auto last = std::find_if(counts.rbegin(), counts.rend(), full);
    // The empty bucket before the first gives it a left edge.
    const auto begin = std::max<std::ptrdiff_t>(first - counts.begin() - 1, 0);
    const auto end = counts.rend() - last;
    kept_limits.assign(limits.begin() + begin, limits.begin() + end);
    kept_counts.assign(counts.begin() + begin, counts.begin() + end);
  }
  Message histogram;
  histogram.fixed(1, least);
  histogram.fixed(2, most);
  histogram.fixed(3, number);
  histogram.fixed(4, sum);
  histogram.fixed(5, squares);
  histogram.packed(6, kept_limits);
  histogram.packed(7, kept_counts);
  return histogram;
}

class FileWriter : public TensorBoardWriter {
 public:
  explicit FileWriter(PendingFile file) : file_(std::move(file)) {}
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter() override { (void)drain(); }

  Result<void> start(double time) {
    Message event;
    event.fixed(1, time);
    event.bytes(3, "brain.Event:2");
    return add(record_of(event.text()));
  }

  Result<void> scalar(
      const std::string& tag,
      double value,
      int64_t step,
      double time) override {
    Message fields;
    fields.fixed(2, static_cast<float>(value));
    return add(summary_event(tag, fields, step, time));
  }

  Result<void> image(
      const std::string& tag,
      const Image& image,
      int64_t step,
      double time) override {
    auto png = encode_png(image);
    if (!png) {
      return std::move(png.error())
          .with_context(fmt::format("image '{}' for TensorBoard", tag));
    }
    Message picture;
    picture.number(1, static_cast<uint64_t>(image.height));
    picture.number(2, static_cast<uint64_t>(image.width));
    picture.number(3, static_cast<uint64_t>(image.channels));
    picture.bytes(4, *png);
    Message fields;
    fields.bytes(4, picture.text());
    return add(summary_event(tag, fields, step, time));
  }

  Result<void> histogram(
      const std::string& tag,
      std::span<const float> values,
      int64_t step,
      double time) override {
    Message fields;
    fields.bytes(5, histogram_message(values).text());
    return add(summary_event(tag, fields, step, time));
  }

  Result<void> text(
      const std::string& tag,
      const std::string& markdown,
      int64_t step,
      double time) override {
    constexpr uint64_t kStringType = 7;
    Message extent;
    extent.number(1, 1);
    Message shape;
    shape.bytes(2, extent.text());
    Message tensor;
    tensor.number(1, kStringType);
    tensor.bytes(2, shape.text());
    tensor.bytes(8, markdown);
    Message plugin;
    plugin.bytes(1, "text");
    Message metadata;
    metadata.bytes(1, plugin.text());
    Message fields;
    fields.bytes(8, tensor.text());
    fields.bytes(9, metadata.text());
    return add(summary_event(tag, fields, step, time));
  }

  Result<void> flush() override { return drain(); }
  const os::Path& path() const override { return file_.path(); }

 private:
  Result<void> add(const std::string& record) {
    file_.add(record);
    return file_.waiting() < kGather ? Result<void>() : drain();
  }

  Result<void> drain() {
    return file_.drain().with_context("writing TensorBoard's file");
  }

  PendingFile file_;
};

}  // namespace

Result<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::open(
    os::FileSystem& files,
    const os::Path& folder) {
  LOCKSTEP_TRY(files.make_directories(folder));
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') {
    std::strcpy(host.data(), "localhost");
  }
  const double now = os::real_clock().unix_seconds();
  const std::string stem = fmt::format(
      "events.out.tfevents.{}.{}.{}",
      static_cast<int64_t>(now),
      host.data(),
      getpid());
  os::Path path = folder / stem;
  for (int i = 1; files.exists(path); ++i) {
    path = folder / fmt::format("{}.{}", stem, i);
  }
  LOCKSTEP_ASSIGN(auto file, PendingFile::open(files, path));
  auto writer = std::make_unique<FileWriter>(std::move(file));
  LOCKSTEP_TRY(writer->start(now));
  LOCKSTEP_TRY(writer->flush());
  return writer;
}

}  // namespace lockstep::record
