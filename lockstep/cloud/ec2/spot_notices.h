#pragma once

// The two-minute notice and the rebalance hint, as the metadata service of the
// machine tells them.

#include "lockstep/cloud/notices.h"
#include "lockstep/fetch/instance_metadata.h"

namespace lockstep::cloud::ec2 {

class SpotNotices : public Notices {
 public:
  explicit SpotNotices(fetch::InstanceMetadata& metadata)
      : metadata_(metadata) {}
  // kCorrupt for a document that cannot be read: something was said.
  Result<std::optional<Notice>> look() override;

 private:
  fetch::InstanceMetadata& metadata_;
};

}  // namespace lockstep::cloud::ec2
