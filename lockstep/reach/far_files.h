#pragma once

// The far end's files: blobs by hash, program sets made of them, and synced
// folders. One object a session; sessions at the same time, also of several
// nodes that share a home, do not disturb each other: every file is made under
// a name of its session and renamed.
//
// Below the home: blobs/<hash>, sets/<id>/, workdirs/<id>/ with
// workdirs/<id>.record (what was sent: hash, size and time of each file),
// incoming/<session>/.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"
#include "lockstep/reach/content.h"
#include "lockstep/reach/far_end.h"

namespace lockstep::reach {

class FarFiles {
 public:
  explicit FarFiles(os::Path home);
  ~FarFiles();
  FarFiles(const FarFiles&) = delete;
  FarFiles& operator=(const FarFiles&) = delete;

  // {set, files: [{name, hash, size, executable, at}], program}: {path} when
  // the set is whole, else {missing: [hash], free}. A file that lies at the
  // same path with the same content need not travel.
  Result<nlohmann::json> have(const nlohmann::json& request);
  // {hash, size, offset, raw, data, keep}: pieces of one file, in order; `keep`
  // makes it a blob, else it is for the sync that follows.
  Result<nlohmann::json> put(const nlohmann::json& request);
  // As have, once all blobs are there: {path}.
  Result<nlohmann::json> commit(const nlohmann::json& request);
  // {id}: {path, free, files: {name: {hash, mode} | {link}}}, of those that
  // still are as they were sent.
  Result<nlohmann::json> manifest(const nlohmann::json& request);
  // {id, digest, files: {name: {hash, size, mode, time} | {link} | {folder}},
  // remove: [name]}: {path}.
  Result<nlohmann::json> sync(const nlohmann::json& request);
  // {path, offset, limit}: {data, size}.
  Result<nlohmann::json> read(const nlohmann::json& request);
  // {path}: {free}.
  Result<nlohmann::json> free(const nlohmann::json& request);

 private:
  struct Incoming;
  os::Path incoming() const;
  os::Path blob(const std::string& hash) const;

  os::Path home_;
  std::string session_;
  HashMemory hashes_;
  std::unique_ptr<Incoming> open_;
};

// What is known of a synced folder: {digest, files}; empty for any other.
nlohmann::json folder_record(const os::Path& folder);

// 64 hexadecimal digits of a message.
Result<std::string> hash_field(const nlohmann::json& from, const char* name);
// A name from a message, below `root`: kPermission for one that leads out of
// it.
Result<os::Path> inside(const os::Path& root, const std::string& name);

}  // namespace lockstep::reach
