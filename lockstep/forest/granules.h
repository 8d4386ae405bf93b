#pragma once

// Satellite granules on disk into rows to learn from: CALIPSO profiles (.hdf)
// and VIIRS pixels (.nc) that lie within a few kilometres, the sixteen bands as
// features, the phase of the cloud as label; values that are fill are dropped.
// Each VIIRS granule that a profile falls into gives one .h5 file, whole or not
// there: a second call goes on with those that are missing or were made with
// other settings. Many threads and
// ranks may share the list.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/os/file.h"

namespace lockstep::forest {

struct CollocationOptions {
  os::Path calipso;  // folder of .hdf
  os::Path viirs;    // folder of .nc
  os::Path rows;     // folder for .h5
  double kilometres = 5;
  Duration window = std::chrono::minutes(6);  // length of a VIIRS granule
};

// A VIIRS granule: its bands, where its pixels lie, and when it began (Unix
// seconds), from "A2014001.0012" in its name.
struct Granule {
  os::Path bands;
  os::Path places;  // the same file, or one of its time and product
  std::string time;
  double begin = 0;
  os::Path rows{};  // what it becomes
};

// By name, those that are done already, too. Errors: a folder without granules,
// a band file whose places are missing, or may be in several files.
Result<std::vector<Granule>> find_granules(const CollocationOptions& options);

struct CollocationCount {
  uint64_t profiles = 0;  // within the window
  uint64_t near = 0;      // of those, closer than `kilometres`
  uint64_t rows = 0;      // of those, without fill values
};

// The lidar's track, read once for all granules: the profiles that have a time,
// a place and flags.
struct Track {
  std::vector<double> time;  // Unix seconds
  std::vector<double> latitude;
  std::vector<double> longitude;
  std::vector<uint32_t> flags;
  std::vector<double> ascending{};  // `time` once more, to count in
};
Result<Track> read_tracks(const CollocationOptions& options);

// Its rows are here, of these settings and as many profiles; or of a track that
// is not here any more.
bool is_done(
    const Granule& granule,
    const Track& track,
    const CollocationOptions& options);

Result<CollocationCount> collocate_granule(
    const Granule& granule,
    const Track& track,
    const CollocationOptions& options);

}  // namespace lockstep::forest
