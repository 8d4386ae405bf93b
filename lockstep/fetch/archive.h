#pragma once

// Unpacks tar archives (ustar, GNU long names, pax paths), plain or gzipped,
// and gzip files. An archive is not trusted: absolute names, "..", links and
// devices are refused, and nothing outside the target folder is touched. A
// truncated or damaged one is an error (kCorrupt) that names the file. What
// was unpacked before the error stays: unpack into a folder of your own.

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

struct UnpackOptions {
  int strip = 0;  // leading parts of each name to drop, as tar's
  uint64_t max_bytes = uint64_t{1} << 40;  // unpacked, against bombs
};

// Names of the files, relative to `into`, in the archive's order.
Result<std::vector<std::string>> unpack_tar(
    const os::Path& archive,
    const os::Path& into,
    const UnpackOptions& options = {});

// Writes the content of a .gz file; returns its size.
Result<uint64_t> gunzip_file(const os::Path& from, const os::Path& to);

}  // namespace lockstep::fetch
