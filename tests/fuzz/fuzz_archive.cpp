// Archives from the network: tar, plain and gzipped. Nothing may be written
// outside of the target folder, whatever the names say.

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lockstep/fetch/archive.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;
namespace fs = std::filesystem;

struct Folder {
  Folder() {
    std::error_code error;
    std::string base = fs::is_directory("/dev/shm", error)
                           ? "/dev/shm"
                           : fs::temp_directory_path().string();
    base += "/lockstep-fuzz-XXXXXX";
    path = ::mkdtemp(base.data());
  }
  ~Folder() { fs::remove_all(path); }
  fs::path path;
};

void run(std::string_view input) {
  static const Folder folder;
  fs::path archive = folder.path / "archive";
  fs::path into = folder.path / "into";
  std::ofstream(archive, std::ios::binary) << input;
  fs::create_directory(into);
  auto names = fetch::unpack_tar(archive, into, {.max_bytes = 1 << 20});
  if (names) {
    for (const std::string& name : *names) {
      fuzz::expect(
          fs::is_regular_file(fs::symlink_status(into / name)),
          "what is named was written");
    }
  }
  for (const auto& entry : fs::recursive_directory_iterator(into)) {
    fuzz::expect(!entry.is_symlink(), "an archive makes no links");
  }
  size_t beside = 0;
  for (const auto& entry : fs::directory_iterator(folder.path)) {
    beside += entry.path() != archive && entry.path() != into ? 1 : 0;
  }
  fuzz::expect(beside == 0, "nothing is written outside of the folder");
  fs::remove_all(into);
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "archive",
       .run = run,
       .dictionary =
           {"../",
            "/",
            "ustar",
            "0000644",
            "00000000000",
            "././@LongLink",
            "path=../x",
            "12 path=a/b\n",
            "\x1f\x8b\x08",
            std::string(512, '\0')},
       .max_size = 8192});
}
