#pragma once

// What gives nodes. A provider is one account in one region (or a list of own
// hosts); it keeps no state of its own: what exists is what instances() and
// resources() say, by tag. Journal, leases, budget and the decision what to
// end are the fleet's.
//
// Every call may take seconds and is safe from any thread. Pages are followed,
// throttling and passing failures are tried again within a bound, and what was
// just made is waited for, all inside the provider; what comes back as an
// error is final and has a class (cloud/failure.h). A call that makes
// something takes a token: the same token with the same order gives the same
// thing again, never a second one.

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/base/units.h"
#include "lockstep/cloud/machine.h"

namespace lockstep::cloud {

// A public key under a name of ours.
struct KeyPairOrder {
  std::string name;
  std::string public_key;  // one line, as in id_ed25519.pub
  Tags tags;
};

struct SecurityGroupOrder {
  // Of one that is there: it is used as it is, nothing else below counts.
  std::string existing;
  std::string name;
  std::string subnet;  // empty: the default network
  // "203.0.113.7/32": who may reach ssh. Empty: nobody from outside.
  std::vector<std::string> ssh_from;
  Tags tags;
};

struct LaunchOrder {
  std::string token;  // at most 64 characters
  std::string type;
  std::string zone;  // empty: any
  int count = 1;     // all of them or none
  Market market = Market::kOnDemand;
  std::optional<Money> bid;  // an hour; spot only; none: the on-demand price
  std::string image;
  std::string root_device;                   // of the image; with `disk`
  std::optional<Bytes> disk;                 // none: the image's
  std::string key_pair;                      // empty: user-data brings the key
  std::vector<std::string> security_groups;  // ids
  std::string subnet;
  std::string placement_group;
  std::string instance_profile;  // a role for the head
  std::string user_data;         // a script; see user_data.h
  Tags tags;                     // of machine, disk and spot request
};

class Provider {
 public:
  virtual ~Provider() = default;
  virtual std::string name() const = 0;    // "aws", "hosts"
  virtual std::string region() const = 0;  // empty: it has none
  // False: own machines, which nobody bills by the hour and nothing ends.
  virtual bool is_rented() const = 0;

  // All types, or the named ones; a name that is not there is kBadRequest
  // with the nearest ones.
  virtual Result<std::vector<Offer>> offers(
      const std::vector<std::string>& types) = 0;
  virtual Result<Quota> quota(const Offer& offer, Market market) = 0;
  // An image of another architecture is kBadRequest.
  virtual Result<Image> image(const ImageWish& wish) = 0;

  // The id of the key pair or group, which is made when it is not there. One
  // of the same name that is not ours is refused, never changed.
  virtual Result<std::string> key_pair(const KeyPairOrder& order) = 0;
  virtual Result<std::string> security_group(
      const SecurityGroupOrder& order) = 0;

  // Ends on shutdown, always. Returns when the cloud knows the machines, not
  // when they answer.
  virtual Result<std::vector<Instance>> launch(const LaunchOrder& order) = 0;
  virtual Result<std::vector<Instance>> instances(const Selection& which) = 0;
  // Fine for those that are gone. Returns when the order is taken.
  virtual Result<void> terminate(const std::vector<std::string>& ids) = 0;

  virtual Result<std::vector<Resource>> resources(
      ResourceKind kind,
      const Selection& which) = 0;
  // Ends or deletes it; fine when it is gone.
  virtual Result<void> remove(ResourceKind kind, const std::string& id) = 0;
  virtual Result<void> set_tags(
      const std::vector<std::string>& ids,
      const Tags& tags) = 0;
  // The id of an image made of a machine, which is stopped for it and started
  // again. It can be used once the cloud has copied the disk.
  virtual Result<std::string> bake_image(
      const std::string& instance,
      const std::string& name,
      const Tags& tags) = 0;
};

}  // namespace lockstep::cloud
