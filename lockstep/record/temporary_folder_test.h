#pragma once

// A folder of a test's own, gone at its end.

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace lockstep::record {

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string form =
        (std::filesystem::temp_directory_path() / "record-XXXXXX").string();
    if (::mkdtemp(form.data()) == nullptr) {
      throw std::runtime_error("no temporary folder");
    }
    path_ = form;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace lockstep::record
