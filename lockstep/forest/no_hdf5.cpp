#include "lockstep/forest/table_file.h"

namespace lockstep::forest {

Result<std::unique_ptr<TableFile>> open_hdf5(
    const os::Path& path,
    const TableOptions& /*options*/) {
  return Error(
             ErrorCode::kInvalidInput,
             path.string() + ": this build reads no HDF5")
      .with_fix("install libhdf5-dev and build again, or use .csv or .npy");
}

}  // namespace lockstep::forest
