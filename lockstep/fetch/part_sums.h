#pragma once

// Checksums of a file that is sent in parts: one reading gives the CRC of every
// part and of the whole, and where the payload is signed its hashes, while the
// bytes are in the cache. Internal to fetch.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/fetch/part_plan.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

struct PartSums {
  std::vector<uint32_t> crcs;
  std::vector<std::string> hashes;  // SHA-256; "" where they are not wanted
  std::string whole;                // the CRC of all, as text
};

struct PartSumsOptions {
  bool hash = false;
  int workers = 1;
};

Result<PartSums> read_part_sums(
    int file,
    const os::Path& path,
    const PartPlan& plan,
    const PartSumsOptions& options);

// Of one part, in hexadecimal: for https, where the signature does not cover
// the body.
Result<std::string> read_part_md5(
    int file,
    const os::Path& path,
    const PartPlan& plan,
    size_t index);

}  // namespace lockstep::fetch
