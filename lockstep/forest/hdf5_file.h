#pragma once

// HDF5 files (and NetCDF 4, which is HDF5) as numbers by name: reading parts of
// data sets, their attributes, and writing a table of columns. Errors name file
// and data set; HDF5's own stack of messages is not printed. The library is
// not made for threads: calls take turns inside.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::forest {

struct Hdf5Set {
  std::string name;  // with its groups: "observation_data/M01"
  std::vector<uint64_t> shape;
};

class Hdf5File {
 public:
  static Result<Hdf5File> open(const os::Path& path);
  Hdf5File(Hdf5File&&) noexcept;
  Hdf5File& operator=(Hdf5File&&) noexcept;
  ~Hdf5File();

  // Data sets of numbers and booleans (0 and 1), by name, in all groups.
  const std::vector<Hdf5Set>& sets() const;
  // The data sets with rows that hold something else: strings, records.
  const std::vector<Hdf5Set>& others() const;
  const Hdf5Set* find(const std::string& name) const;

  // Rows (along the first axis) from `first` on, converted.
  Result<std::vector<float>>
  read_floats(const std::string& name, uint64_t first, uint64_t count) const;
  Result<std::vector<double>>
  read_doubles(const std::string& name, uint64_t first, uint64_t count) const;
  // A number that stands beside a data set; none when it is not there.
  std::optional<double> attribute(
      const std::string& set,
      const std::string& name) const;
  // A text of the root that write_hdf5 wrote; none when it is not there.
  std::optional<std::string> text(const std::string& name) const;

 private:
  struct Impl;
  explicit Hdf5File(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct Hdf5Column {
  std::string name;
  std::vector<float> values;
};
// A new file with a data set for each column, and texts as attributes of the
// root; under a temporary name until it is whole.
Result<void> write_hdf5(
    const os::Path& path,
    const std::vector<Hdf5Column>& columns,
    const std::map<std::string, std::string>& attributes);

}  // namespace lockstep::forest
