#pragma once

// A forest on disk: a safetensors file that any reader of the format opens,
// described in docs/forest.md. Written atomically; what is read is checked
// (links, features, bins) before it is used, so that a damaged file is an error
// and never a crash.

#include <string>

#include "lockstep/forest/tree.h"
#include "lockstep/os/file.h"
#include "lockstep/record/safetensors.h"

namespace lockstep::forest {

// `facts` go into the metadata beside our own keys (lockstep.*).
Result<void> write_model(
    os::FileSystem& files,
    const os::Path& path,
    const Forest& forest,
    const record::Metadata& facts);

Result<Forest> read_model(const os::Path& path);

}  // namespace lockstep::forest
