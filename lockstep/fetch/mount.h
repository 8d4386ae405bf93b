#pragma once

// A source of `file_mounts` as a path on this machine. A local folder or file
// stands as it is; what is elsewhere is fetched; an archive (.tar, .tar.gz,
// .tgz) is unpacked. Copies live below `cache`, one folder a source and in it
// one a version, so that a run which uses an older one is not disturbed; a
// version is whole or absent. A copy that is still what the server has is not
// fetched again, and one that cannot be asked about is used, with a word. Two
// fetches of one source wait for each other (a lock file).
//
// Schemes: none or file:// (a path; ~/ is the home), http:// and https://
// (http.h), s3:// (s3.h; an object, or all objects below a name as a folder).
// A further one is one more function in mount.cpp.

#include <functional>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

struct MountOptions {
  std::string source;
  os::Path cache;
  std::function<void(const std::string&)> say;  // what takes time, and why
};

// A folder, or a file. Errors name the source: kNotFound when it is not there,
// kInvalidInput for another scheme or a kind of archive that is not unpacked.
Result<os::Path> resolve_mount(const MountOptions& options);

// "https" of "https://...", "" of a path.
std::string scheme_of(const std::string& source);

}  // namespace lockstep::fetch
