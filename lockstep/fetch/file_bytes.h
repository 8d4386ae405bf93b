#pragma once

// Bytes of files at their places: all of them or an error that names the file.
// Internal to fetch.

#include <cstdint>
#include <span>
#include <string_view>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

// Fills `into` from there on; kAborted when the file is shorter by now.
Result<void>
read_at(int file, const os::Path& path, uint64_t offset, std::span<char> into);
Result<void> write_at(
    int file,
    const os::Path& path,
    uint64_t offset,
    std::string_view bytes);
// Writes a whole file under a temporary name and renames it; not synced.
Result<void> place_file(const os::Path& path, std::string_view bytes);

}  // namespace lockstep::fetch
