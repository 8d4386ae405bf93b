#include "lockstep/forest/granules.h"

namespace lockstep::forest {
namespace {

Error absent() {
  return Error(
             ErrorCode::kInvalidInput, "this build reads no satellite granules")
      .with_fix("install libhdf4-dev and libhdf5-dev and build again");
}

}  // namespace

Result<std::vector<Granule>> find_granules(
    const CollocationOptions& /*options*/) {
  return absent();
}

bool is_done(
    const Granule& /*granule*/,
    const Track& /*track*/,
    const CollocationOptions& /*options*/) {
  return false;
}

Result<Track> read_tracks(const CollocationOptions& /*options*/) {
  return absent();
}

Result<CollocationCount> collocate_granule(
    const Granule& /*granule*/,
    const Track& /*track*/,
    const CollocationOptions& /*options*/) {
  return absent();
}

}  // namespace lockstep::forest
