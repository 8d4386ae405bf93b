#include "lockstep/os/temporary_folder.h"

#include <filesystem>

namespace lockstep::os {

Path temporary_folder() {
  std::error_code error;
  const Path folder = std::filesystem::temp_directory_path(error);
  return error ? Path("/tmp") : folder;
}

}  // namespace lockstep::os
