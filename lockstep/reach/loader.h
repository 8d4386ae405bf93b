#pragma once

// The libraries of a program, as the dynamic loader itself finds them.

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"

namespace lockstep::reach {

struct Library {
  std::string name;  // "libtorch.so": as programs ask for it
  os::Path path;
};

// Every library that the program loads at its start but those of every system
// (libc and its kin, and a GPU's driver). A script or a static program has
// none. kNotFound names a library that is lacking here.
Result<std::vector<Library>> libraries_of(const os::Path& program);

// The loader that an ELF file names; empty for any other file. kCorrupt for
// one that is cut short.
Result<std::string> interpreter_of(std::string_view file);
// What `ld.so --list` printed.
Result<std::vector<Library>> parse_loader_list(const std::string& text);

}  // namespace lockstep::reach
