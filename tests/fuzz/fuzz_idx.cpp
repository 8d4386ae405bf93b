// MNIST's files, plain and gzipped: images and labels, from a folder.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/data/dataset.h"
#include "lockstep/data/idx.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

constexpr std::string_view kSplit = "\n--LABELS--\n";

struct Folder {
  Folder() {
    std::error_code error;
    std::string base = std::filesystem::is_directory("/dev/shm", error)
                           ? "/dev/shm"
                           : std::filesystem::temp_directory_path().string();
    base += "/lockstep-fuzz-XXXXXX";
    path = ::mkdtemp(base.data());
  }
  ~Folder() { std::filesystem::remove_all(path); }
  void put(const char* name, std::string_view content) const {
    std::ofstream(path / name, std::ios::binary) << content;
  }
  std::filesystem::path path;
};

void run(std::string_view input) {
  static const Folder folder;
  size_t split = std::min(input.find(kSplit), input.size());
  folder.put("train-images-idx3-ubyte", input.substr(0, split));
  folder.put(
      "train-labels-idx1-ubyte",
      input.substr(std::min(split + kSplit.size(), input.size())));
  try {
    auto dataset = data::open_idx({folder.path.string()}, true, 0, {});
    fuzz::expect(dataset != nullptr, "the files are found");
    data::RawImage image;
    for (int64_t index = 0; index < dataset->size(); ++index) {
      dataset->read(index, image);
      fuzz::expect(dataset->label(index) >= 0, "a label is a class");
    }
  } catch (const data::DataError& error) {
    fuzz::expect(
        std::string_view(error.what()).find("train-") != std::string_view::npos,
        "the error names the file");
  }
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "idx",
       .run = run,
       .dictionary =
           {std::string("\0\0\x08\x03", 4),
            std::string("\0\0\x08\x01", 4),
            std::string(kSplit),
            "\x1f\x8b\x08"},
       .max_size = 4096});
}
