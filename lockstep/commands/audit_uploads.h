#pragma once

// `lockstep audit`, of S3: uploads in parts below `outputs` that nobody
// completed. A list of objects does not show them and they cost storage for
// ever; an uploader ends its own when it stores a key anew, those of machines
// that are gone are left to this.
//
// Looked at are the outputs of the runs that this machine knows, of these what
// is below the runs alone, and all of the places that the user names. Owned is
// what belongs to a run that is under way, and what is younger than `stale`.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/fetch/s3.h"
#include "lockstep/os/file.h"

namespace lockstep::commands {

struct UploadAudit {
  std::vector<std::string> places;  // "s3://bucket/folder"
  os::Path runs_dir;
  Duration stale = std::chrono::hours(24);
  bool fix = false;  // end what nobody owns
};

struct AuditedUpload {
  fetch::S3Address address;
  std::string id;
  double begun = 0;   // Unix seconds; 0: unknown
  std::string owner;  // "its run", "its maker", "nobody"
  std::string why;    // in words
  bool ended = false;
  bool is_owned() const { return owner != "nobody"; }
};

struct UploadFindings {
  std::vector<AuditedUpload> uploads;
  std::vector<Error> failed;  // of the places that were named, and of ends
};

// An Error for a place that is none. Outputs of old runs that cannot be looked
// at are a warning: their bucket may be gone.
Result<UploadFindings> audit_uploads(const UploadAudit& audit);

}  // namespace lockstep::commands
