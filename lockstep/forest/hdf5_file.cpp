#include "lockstep/forest/hdf5_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>

#include "lockstep/forest/utf8.h"

namespace lockstep::forest {
namespace {

std::mutex& library_mutex() {
  static std::mutex mutex;
  return mutex;
}

// An identifier that is closed by the function of its kind.
class Handle {
 public:
  Handle(hid_t id, herr_t (*close)(hid_t)) : id_(id), close_(close) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (id_ >= 0) {
      close_(id_);
    }
  }
  operator hid_t() const { return id_; }
  bool good() const { return id_ >= 0; }

 private:
  hid_t id_;
  herr_t (*close_)(hid_t);
};

Error bad(const std::string& message) {
  return Error(ErrorCode::kCorrupt, message);
}

std::vector<uint64_t> shape_of(hid_t set) {
  const Handle space(H5Dget_space(set), H5Sclose);
  const int axes = space.good() ? H5Sget_simple_extent_ndims(space) : 0;
  std::vector<hsize_t> sizes(static_cast<size_t>(std::max(0, axes)));
  if (axes > 0) {
    H5Sget_simple_extent_dims(space, sizes.data(), nullptr);
  }
  return {sizes.begin(), sizes.end()};
}

bool is_here(H5Z_filter_t filter) {
  return H5Zfilter_avail(filter) > 0;
}

// The filters of HDF5 itself that this build of it has.
std::string filters_here() {
  const std::pair<H5Z_filter_t, const char*> own[] = {
      {H5Z_FILTER_DEFLATE, "gzip"},
      {H5Z_FILTER_SZIP, "szip"},
      {H5Z_FILTER_SHUFFLE, "shuffle"},
      {H5Z_FILTER_FLETCHER32, "fletcher32"},
      {H5Z_FILTER_SCALEOFFSET, "scale-offset"}};
  std::vector<std::string> names;
  for (const auto& [filter, name] : own) {
    if (is_here(filter)) {
      names.push_back(name);
    }
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

// The name of a data set's first filter that is not here; empty: all are.
std::string absent_filter(hid_t set) {
  const Handle list(H5Dget_create_plist(set), H5Pclose);
  const int count = list.good() ? H5Pget_nfilters(list) : 0;
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0;
    size_t values = 0;  // none of them is asked for
    std::array<char, 64> name{};
    const auto filter = H5Pget_filter2(
        list,
        static_cast<unsigned>(i),
        &flags,
        &values,
        nullptr,
        name.size() - 1,
        name.data(),
        nullptr);
    if (filter >= 0 && !is_here(filter)) {
      return name[0] == '\0' ? fmt::format("filter {}", filter) : name.data();
    }
  }
  return "";
}

// Data sets by what they hold.
struct Found {
  std::vector<Hdf5Set> numbers;
  std::vector<Hdf5Set> others;
};

herr_t
note_set(hid_t file, const char* name, const H5O_info_t* info, void* found) {
  if (info->type != H5O_TYPE_DATASET) {
    return 0;
  }
  const Handle set(H5Dopen2(file, name, H5P_DEFAULT), H5Dclose);
  if (!set.good()) {
    return -1;  // a column that is not seen would not be missed
  }
  const Handle type(H5Dget_type(set), H5Tclose);
  const auto kind = H5Tget_class(type);
  const bool number =
      kind == H5T_INTEGER || kind == H5T_FLOAT || kind == H5T_ENUM;
  auto shape = shape_of(set);
  if (!shape.empty()) {
    auto& lists = *static_cast<Found*>(found);
    (number ? lists.numbers : lists.others).push_back({name, std::move(shape)});
  }
  return 0;
}

}  // namespace

struct Hdf5File::Impl {
  std::string path;
  hid_t file = -1;
  Found found;
  ~Impl() {
    const std::lock_guard lock(library_mutex());
    if (file >= 0) {
      H5Fclose(file);
    }
  }

  template <class T>
  Result<std::vector<T>> read(
      const std::string& name,
      uint64_t first,
      uint64_t count,
      hid_t type) const {
    const std::lock_guard lock(library_mutex());
    const Handle set(H5Dopen2(file, name.c_str(), H5P_DEFAULT), H5Dclose);
    if (!set.good()) {
      return bad(fmt::format("{}: no data set '{}'", path, name));
    }
    const auto shape = shape_of(set);
    if (shape.empty() || first + count > shape[0]) {
      return bad(
          fmt::format(
              "{}: '{}' has {} rows, {} are needed",
              path,
              name,
              shape.empty() ? 0 : shape[0],
              first + count));
    }
    std::vector<hsize_t> start(shape.size(), 0);
    std::vector<hsize_t> size(shape.begin(), shape.end());
    start[0] = first;
    size[0] = count;
    size_t numbers = 1;
    for (const auto n : size) {
      numbers *= n;
    }
    std::vector<T> values(numbers);
    const Handle from(H5Dget_space(set), H5Sclose);
    const Handle to(
        H5Screate_simple(static_cast<int>(size.size()), size.data(), nullptr),
        H5Sclose);
    if (numbers == 0) {
      return values;
    }
    if (H5Sselect_hyperslab(
            from, H5S_SELECT_SET, start.data(), nullptr, size.data(), nullptr) <
            0 ||
        H5Dread(set, type, to, from, H5P_DEFAULT, values.data()) < 0) {
      return unread(set, name);
    }
    return values;
  }

  // The library fails alike for what is torn and for what it cannot unpack.
  Error unread(hid_t set, const std::string& name) const {
    const auto filter = absent_filter(set);
    if (filter.empty()) {
      return bad(
          fmt::format(
              "{}: '{}' cannot be read; the file is damaged or cut off",
              path,
              name));
    }
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format(
                   "{}: '{}' is compressed with {}, which is not supported; "
                   "accepted: {}",
                   path,
                   name,
                   printable(filter),
                   filters_here()))
        .with_fix("write it again with gzip (h5py: compression='gzip')");
  }
};

Hdf5File::Hdf5File(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Hdf5File::Hdf5File(Hdf5File&&) noexcept = default;
Hdf5File& Hdf5File::operator=(Hdf5File&&) noexcept = default;
Hdf5File::~Hdf5File() = default;

Result<Hdf5File> Hdf5File::open(const os::Path& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path.string();
  std::unique_lock lock(library_mutex());
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  impl->file = H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  const bool is_open = impl->file >= 0;
  const bool listed = is_open && H5Ovisit2(
                                     impl->file,
                                     H5_INDEX_NAME,
                                     H5_ITER_INC,
                                     note_set,
                                     &impl->found,
                                     H5O_INFO_BASIC) >= 0;
  lock.unlock();  // what closes the file takes it again
  if (!listed) {
    return bad(
        path.string() + (is_open
                             ? ": its list of data sets is damaged or cut off"
                             : ": not an HDF5 file, or it is cut off"));
  }
  return Hdf5File(std::move(impl));
}

const std::vector<Hdf5Set>& Hdf5File::sets() const {
  return impl_->found.numbers;
}

const std::vector<Hdf5Set>& Hdf5File::others() const {
  return impl_->found.others;
}

const Hdf5Set* Hdf5File::find(const std::string& name) const {
  for (const auto& set : impl_->found.numbers) {
    if (set.name == name) {
      return &set;
    }
  }
  return nullptr;
}

Result<std::vector<float>> Hdf5File::read_floats(
    const std::string& name,
    uint64_t first,
    uint64_t count) const {
  return impl_->read<float>(name, first, count, H5T_NATIVE_FLOAT);
}

Result<std::vector<double>> Hdf5File::read_doubles(
    const std::string& name,
    uint64_t first,
    uint64_t count) const {
  return impl_->read<double>(name, first, count, H5T_NATIVE_DOUBLE);
}

std::optional<double> Hdf5File::attribute(
    const std::string& set,
    const std::string& name) const {
  const std::lock_guard lock(library_mutex());
  const Handle attribute(
      H5Aopen_by_name(
          impl_->file, set.c_str(), name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
      H5Aclose);
  if (!attribute.good()) {
    return std::nullopt;
  }
  const Handle space(H5Aget_space(attribute), H5Sclose);
  const auto count = H5Sget_simple_extent_npoints(space);
  if (count < 1) {
    return std::nullopt;
  }
  std::vector<double> values(static_cast<size_t>(count));
  if (H5Aread(attribute, H5T_NATIVE_DOUBLE, values.data()) < 0) {
    return std::nullopt;
  }
  return values[0];
}

std::optional<std::string> Hdf5File::text(const std::string& name) const {
  const std::lock_guard lock(library_mutex());
  const Handle attribute(
      H5Aopen(impl_->file, name.c_str(), H5P_DEFAULT), H5Aclose);
  if (!attribute.good()) {
    return std::nullopt;
  }
  const Handle type(H5Aget_type(attribute), H5Tclose);
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0) {
    return std::nullopt;
  }
  const Handle space(H5Aget_space(attribute), H5Sclose);
  std::string value(H5Tget_size(type), '\0');
  if (H5Sget_simple_extent_npoints(space) != 1 ||
      H5Aread(attribute, type, value.data()) < 0) {
    return std::nullopt;
  }
  return value;
}

Result<void> write_hdf5(
    const os::Path& path,
    const std::vector<Hdf5Column>& columns,
    const std::map<std::string, std::string>& attributes) {
  const std::string part = path.string() + ".part";
  const Error failed(ErrorCode::kIo, path.string() + ": cannot be written");
  {
    const std::lock_guard lock(library_mutex());
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
    const Handle file(
        H5Fcreate(part.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT),
        H5Fclose);
    if (!file.good()) {
      return failed;
    }
    for (const auto& column : columns) {
      const hsize_t size = column.values.size();
      const Handle space(H5Screate_simple(1, &size, nullptr), H5Sclose);
      const Handle set(
          H5Dcreate2(
              file,
              column.name.c_str(),
              H5T_IEEE_F32LE,
              space,
              H5P_DEFAULT,
              H5P_DEFAULT,
              H5P_DEFAULT),
          H5Dclose);
      if (!set.good() || (size > 0 && H5Dwrite(
                                          set,
                                          H5T_NATIVE_FLOAT,
                                          H5S_ALL,
                                          H5S_ALL,
                                          H5P_DEFAULT,
                                          column.values.data()) < 0)) {
        return failed;
      }
    }
    for (const auto& [name, text] : attributes) {
      const Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
      H5Tset_size(type, std::max<size_t>(1, text.size()));
      const Handle space(H5Screate(H5S_SCALAR), H5Sclose);
      const Handle attribute(
          H5Acreate2(file, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT),
          H5Aclose);
      if (!attribute.good() || H5Awrite(attribute, type, text.c_str()) < 0) {
        return failed;
      }
    }
    if (H5Fflush(file, H5F_SCOPE_GLOBAL) < 0) {
      return failed;
    }
  }
  std::error_code error;
  std::filesystem::rename(part, path, error);
  return error ? Result<void>(failed) : Result<void>();
}

}  // namespace lockstep::forest
