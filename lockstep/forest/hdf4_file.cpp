#include "lockstep/forest/hdf4_file.h"

#include <fmt/format.h>
#include <mfhdf.h>

#include <array>
#include <mutex>

namespace lockstep::forest {
namespace {

std::mutex& library_mutex() {
  static std::mutex mutex;
  return mutex;
}

Error bad(const std::string& message) {
  return Error(ErrorCode::kCorrupt, message);
}

struct Closer {
  int32 id;
  intn (*close)(int32);
  ~Closer() { close(id); }
};

template <class T>
bool read_as(
    int32 set,
    std::vector<int32>& start,
    std::vector<int32>& size,
    Hdf4Set& result) {
  std::vector<T> raw(result.values.size());
  if (SDreaddata(set, start.data(), nullptr, size.data(), raw.data()) == FAIL) {
    return false;
  }
  result.values.assign(raw.begin(), raw.end());
  T fill{};
  if (SDgetfillvalue(set, &fill) != FAIL) {
    result.fill = static_cast<double>(fill);
  }
  return true;
}

bool read_typed(
    int32 type,
    int32 set,
    std::vector<int32>& start,
    std::vector<int32>& size,
    Hdf4Set& result) {
  switch (type) {
    case DFNT_FLOAT32:
      return read_as<float>(set, start, size, result);
    case DFNT_FLOAT64:
      return read_as<double>(set, start, size, result);
    case DFNT_INT8:
      return read_as<int8_t>(set, start, size, result);
    case DFNT_UINT8:
      return read_as<uint8_t>(set, start, size, result);
    case DFNT_INT16:
      return read_as<int16_t>(set, start, size, result);
    case DFNT_UINT16:
      return read_as<uint16_t>(set, start, size, result);
    case DFNT_INT32:
      return read_as<int32_t>(set, start, size, result);
    case DFNT_UINT32:
      return read_as<uint32_t>(set, start, size, result);
    default:
      return false;
  }
}

}  // namespace

Result<Hdf4Set> read_hdf4(const os::Path& path, const std::string& name) {
  const std::lock_guard lock(library_mutex());
  const int32 file = SDstart(path.c_str(), DFACC_READ);
  if (file == FAIL) {
    return bad(path.string() + ": not an HDF4 file, or it is cut off");
  }
  const Closer close_file{file, SDend};
  const int32 index = SDnametoindex(file, name.c_str());
  const int32 set = index == FAIL ? FAIL : SDselect(file, index);
  if (set == FAIL) {
    return bad(fmt::format("{}: no data set '{}'", path.string(), name));
  }
  const Closer close_set{set, SDendaccess};
  std::array<char, H4_MAX_NC_NAME> found{};
  std::array<int32, H4_MAX_VAR_DIMS> sizes{};
  int32 axes = 0;
  int32 type = 0;
  int32 attributes = 0;
  if (SDgetinfo(set, found.data(), &axes, sizes.data(), &type, &attributes) ==
          FAIL ||
      axes < 0 || axes > H4_MAX_VAR_DIMS) {
    return bad(fmt::format("{}: '{}' is damaged", path.string(), name));
  }
  Hdf4Set result;
  std::vector<int32> start(static_cast<size_t>(axes), 0);
  std::vector<int32> size(sizes.begin(), sizes.begin() + axes);
  constexpr size_t kMost = size_t{1} << 34;  // values: more is no real file
  size_t numbers = 1;
  for (const int32 n : size) {
    if (n < 0 || (n > 0 && numbers > kMost / static_cast<size_t>(n))) {
      return bad(fmt::format("{}: '{}' is damaged", path.string(), name));
    }
    result.shape.push_back(static_cast<uint64_t>(n));
    numbers *= static_cast<size_t>(n);
  }
  result.values.resize(numbers);
  if (!read_typed(type, set, start, size, result)) {
    return bad(
        fmt::format(
            "{}: '{}' cannot be read; the file is damaged or cut off",
            path.string(),
            name));
  }
  return result;
}

}  // namespace lockstep::forest
