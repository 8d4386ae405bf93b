#pragma once

// EC2 as a provider: the query API of one region through fetch's signed
// requests, which sign, wait and repeat; here are the calls, their answers, and
// what EC2 is peculiar about: pages, things that are not seen right after they
// were made, and codes that say one thing and mean another. Thread-safe.
//
// Launches always end the machine on shutdown and take the metadata service's
// second version only. Groups that are made let nothing in from the world but
// ssh from the named addresses, and everything between their members.

#include <memory>
#include <string>
#include <vector>

#include "lockstep/cloud/provider.h"
#include "lockstep/fetch/aws_request.h"

namespace lockstep::cloud::ec2 {

struct Ec2Options {
  // Not owned; of the region and account that this object stands for.
  fetch::AwsClient* client = nullptr;
  std::string region;  // empty: the client's
  // How many a page has; the cloud's own limit where it is lower.
  int page = 1000;
  os::Clock* clock = &os::real_clock();  // of pauses between looks
};

class Ec2 : public Provider {
 public:
  explicit Ec2(Ec2Options options);

  std::string name() const override { return "aws"; }
  std::string region() const override { return options_.region; }
  bool is_rented() const override { return true; }

  Result<std::vector<Offer>> offers(
      const std::vector<std::string>& types) override;
  // vCPUs of the type's class, by Service Quotas; used: what runs now.
  Result<Quota> quota(const Offer& offer, Market market) override;
  // The newest Ubuntu 24.04, for GPUs with AWS's driver on it: by the public
  // parameter, else by owner and name.
  Result<Image> image(const ImageWish& wish) override;
  Result<std::string> key_pair(const KeyPairOrder& order) override;
  Result<std::string> security_group(const SecurityGroupOrder& order) override;
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

  // Whether the account may make this call ("RunInstances",
  // "CreateSecurityGroup", "ImportKeyPair"), asked without making it.
  Result<bool> may(const std::string& action);
  // All types of the region by name, for hints.
  Result<std::vector<std::string>> type_names();

 private:
  Result<std::vector<Offer>> describe_types(
      const std::vector<std::string>& types);
  Result<std::string> network_of(const std::string& subnet);
  Result<Image> describe_image(const std::string& id);
  Result<std::string> newest_image(const ImageWish& wish);
  Ec2Options options_;
};

}  // namespace lockstep::cloud::ec2
