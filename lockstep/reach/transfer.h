#pragma once

// Files on their way to a node: programs as content-addressed sets, the
// workdir as a tree of which only changes travel.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/os/file.h"
#include "lockstep/reach/session.h"

namespace lockstep::reach {

// A program and the libraries it needs beyond those of every system (libc and
// its kin), found as the dynamic loader finds them. Its id is a hash over all
// contents.
struct ProgramSet {
  struct File {
    os::Path source;
    std::string name;  // "bin/lockstep-train", "lib/libtorch.so"
    std::string hash;
    uint64_t size = 0;
    bool executable = false;
  };
  std::string id;
  std::vector<File> files;
};
// Hashes are remembered by path, size and time of change under `cache`.
Result<ProgramSet> program_set(const os::Path& program, const os::Path& cache);

// The set that a program of this machine's home (send_program) belongs to.
// kInvalidInput when it is in none.
Result<ProgramSet> placed_set(const os::Path& program);

struct Sent {
  uint64_t files = 0;
  uint64_t bytes = 0;  // before compression
  uint64_t removed = 0;
};

// The path of the program on the node. Only blobs that are not there travel,
// compressed; a set that is complete costs one request.
Result<os::Path>
send_program(Session& session, const ProgramSet& set, Sent* sent = nullptr);

// The folder there. Files that `.lockstepignore` names (the syntax of
// .gitignore), and .git, stay behind; what was removed here is removed there.
// Two runs that use the same folder at once both work: a changed file is
// replaced, never written over. Files that a program made there are left
// alone. `leave` names folders below it that stay behind as well (the runs).
Result<os::Path> sync_folder(
    Session& session,
    const os::Path& folder,
    Sent* sent = nullptr,
    const std::vector<os::Path>& leave = {});

// One file, in a folder of its own there; its path. Nothing is ignored.
Result<os::Path>
sync_file(Session& session, const os::Path& file, Sent* sent = nullptr);

// A folder that sync_folder or sync_file made below this machine's home goes on
// to another node, under the name that it has here; what programs wrote in it
// goes along. kInvalidInput when it is none of these.
Result<os::Path>
pass_on_folder(Session& session, const os::Path& folder, Sent* sent = nullptr);
// The folder of these that holds the path; empty: none.
os::Path placed_folder_of(const os::Path& path);

// Runs a set-up command in `folder` on the node, once for each content of
// command and folder; its output is appended to `log`.
Result<void> run_setup(
    Session& session,
    const os::Path& folder,
    const std::string& command,
    std::string& log,
    os::Deadline deadline);

}  // namespace lockstep::reach
