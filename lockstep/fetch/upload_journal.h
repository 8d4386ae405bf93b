#pragma once

// Which upload in parts was begun on this machine for an object, so that the
// next call goes on with it, or ends it. Written before the store is asked for
// an upload and again with its id, so that none is ever unknown. One file an
// object below `<folder>/uploads`, locked as long as its uploader lives;
// without the lock (another one has it) or without a folder nothing is
// remembered. Internal to fetch.

#include <optional>
#include <string>

#include "lockstep/os/descriptor.h"
#include "lockstep/os/file.h"

namespace lockstep::fetch {

class UploadJournal {
 public:
  struct Entry {
    std::string upload_id;  // empty: asked for, and not known to be given
    uint64_t size = 0;
    uint64_t part_size = 0;
    std::string crc;
    int64_t begun = 0;  // Unix seconds; before the store was asked for it
  };

  UploadJournal() = default;  // remembers nothing
  // `object` names the store and the object.
  UploadJournal(const os::Path& folder, const std::string& object);

  bool keeps() const { return static_cast<bool>(file_); }
  std::optional<Entry> read() const;
  // On a full disk it forgets: the next call starts anew.
  void write(const Entry& entry);
  void forget();

 private:
  os::Path path_;
  os::Descriptor file_;
};

}  // namespace lockstep::fetch
