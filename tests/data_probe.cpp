// What data/ reads and makes, as raw files for Python to compare:
//   data_probe resize IN H W C OUT_H OUT_W bilinear|bicubic last|planes flip
//   OUT
//   data_probe decode IMAGE OUT       prints "height width"
//   data_probe dataset NAME ROOT train|test INDEX OUT
//                                     prints "size channels label height width"
// Exit code 1 with the message on stderr when it is a DataError.

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/byte_stream.h"
#include "lockstep/data/decode.h"
#include "lockstep/data/resize.h"

namespace {

namespace data = lockstep::data;

template <class T>
void write(const std::string& path, std::span<const T> values) {
  std::ofstream(path, std::ios::binary)
      .write(
          reinterpret_cast<const char*>(values.data()),
          static_cast<std::streamsize>(values.size_bytes()));
}

void resize(std::span<char*> words) {
  const std::vector<uint8_t> pixels = data::read_file(words[0]);
  data::RawImage image;
  image.height = std::stoi(words[1]);
  image.width = std::stoi(words[2]);
  image.channels = std::stoi(words[3]);
  image.pixels = pixels;
  data::ResizeOptions options;
  options.height = std::stoi(words[4]);
  options.width = std::stoi(words[5]);
  options.resize = std::string(words[6]) == "bicubic" ? data::Resize::kBicubic
                                                      : data::Resize::kBilinear;
  options.channels_last = std::string(words[7]) == "last";
  options.mean = {0, 0, 0};
  options.stddev = {1, 1, 1};
  std::vector<float> output(
      static_cast<size_t>(options.height) * static_cast<size_t>(options.width) *
      static_cast<size_t>(image.channels));
  data::Resizer(options).run(
      image, std::string(words[8]) == "1", output.data());
  write<float>(words[9], output);
}

void decode(std::span<char*> words) {
  data::RawImage image;
  data::decode_image(data::read_file(words[0]), words[0], image);
  std::printf("%d %d\n", image.height, image.width);
  write<uint8_t>(words[1], image.pixels);
}

void dataset(std::span<char*> words) {
  data::DatasetOptions options;
  options.name = words[0];
  options.root = words[1];
  options.train = std::string(words[2]) == "train";
  const auto set = data::open_dataset(options);
  const int64_t index = std::stoll(words[3]);
  data::RawImage image;
  set->read(index, image);
  std::printf(
      "%ld %d %ld %d %d\n",
      static_cast<long>(set->size()),
      set->channels(),
      static_cast<long>(set->label(index)),
      image.height,
      image.width);
  write<uint8_t>(words[4], image.pixels);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string verb = argc > 1 ? argv[1] : "";
  const std::span<char*> words(argv + 2, argv + std::max(argc, 2));
  try {
    if (verb == "resize" && words.size() == 10) {
      resize(words);
    } else if (verb == "decode" && words.size() == 2) {
      decode(words);
    } else if (verb == "dataset" && words.size() == 5) {
      dataset(words);
    } else {
      std::fprintf(stderr, "usage: see the top of data_probe.cpp\n");
      return 2;
    }
  } catch (const data::DataError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
