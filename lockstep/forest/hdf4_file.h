#pragma once

// HDF4 files: scientific data sets as numbers by name. Errors name file and
// data set. The library keeps global state: calls take turns inside.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::forest {

struct Hdf4Set {
  std::vector<uint64_t> shape;
  std::vector<double> values;  // row-major
  std::optional<double> fill{};
};

Result<Hdf4Set> read_hdf4(const os::Path& path, const std::string& name);

}  // namespace lockstep::forest
