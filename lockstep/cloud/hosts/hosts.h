#pragma once

// Own hosts as a provider: each host is an instance that is always there, costs
// what the user says and ends with nobody. So a fleet, its leases and its
// budget work on own hosts as on rented ones: launching takes free hosts of the
// list, terminating gives them back. Who holds which host is kept by the object
// alone: two processes that use one list do not see each other, as with
// `--hosts`. Thread-safe.

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cloud/provider.h"

namespace lockstep::cloud {

struct OwnHost {
  std::string name;          // as ssh takes it
  std::string type = "own";  // hosts of one kind share it
  int cpus = 0;              // 0: not known yet
  Bytes memory;
  std::vector<Accelerator> accelerators;
  std::string architecture;
};

class OwnHosts : public Provider {
 public:
  explicit OwnHosts(std::vector<OwnHost> hosts);

  std::string name() const override { return "hosts"; }
  std::string region() const override { return ""; }
  bool is_rented() const override { return false; }

  Result<std::vector<Offer>> offers(
      const std::vector<std::string>& types) override;
  // As many as there are.
  Result<Quota> quota(const Offer& offer, Market market) override;
  // Own hosts have their system; what asks for another is kBadRequest.
  Result<Image> image(const ImageWish& wish) override;
  Result<std::string> key_pair(const KeyPairOrder& order) override;
  Result<std::string> security_group(const SecurityGroupOrder& order) override;
  // kCapacity when fewer are free, kBadRequest for spot, images and disks.
  Result<std::vector<Instance>> launch(const LaunchOrder& order) override;
  Result<std::vector<Instance>> instances(const Selection& which) override;
  Result<void> terminate(const std::vector<std::string>& ids) override;
  Result<std::vector<Resource>> resources(
      ResourceKind kind,
      const Selection& which) override;
  Result<void> remove(ResourceKind kind, const std::string& id) override;
  Result<void> set_tags(const std::vector<std::string>& ids, const Tags& tags)
      override;
  Result<std::string> bake_image(
      const std::string& instance,
      const std::string& name,
      const Tags& tags) override;

 private:
  struct Held {
    OwnHost host;
    std::optional<Instance> instance;  // while somebody holds it
  };
  mutable std::mutex mutex_;
  std::vector<Held> hosts_;
};

}  // namespace lockstep::cloud
