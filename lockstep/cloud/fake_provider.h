#pragma once

// A cloud in memory, for tests of whatever uses a Provider: it keeps its
// contract (tokens, tags, all or none, what is gone is gone) and fails as it is
// told. An answer can be lost after the work was done, and what was just made
// can stay unseen for a while: the two ways in which a cloud makes a careless
// caller launch twice or leave something behind. Thread-safe.

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cloud/provider.h"
#include "lockstep/os/clock.h"

namespace lockstep::cloud {

class FakeProvider : public Provider {
 public:
  explicit FakeProvider(os::Clock& clock);

  // For the test. `call` is the name of a function: "launch".
  void fail(const std::string& call, const Error& error, int times = 1);
  // The work is done, the caller hears only that the cloud failed.
  void lose_answer(const std::string& call, int times = 1);
  // How many of a type the cloud has in all; without it: any number.
  void set_capacity(const std::string& type, int count);
  // What is younger is not listed yet.
  void set_blindness(Duration age);
  std::vector<std::string> calls() const;  // in order
  size_t num_live() const;                 // machines that cost money
  size_t num_launched() const;             // ever

  std::string name() const override { return "fake"; }
  std::string region() const override { return "nowhere-1"; }
  bool is_rented() const override { return true; }
  Result<std::vector<Offer>> offers(
      const std::vector<std::string>& types) override;
  Result<Quota> quota(const Offer& offer, Market market) override;
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

 private:
  // Notes the call; an error when it is to fail before its work.
  Result<void> enter(const std::string& call);
  // An error when its answer is to be lost.
  Result<void> leave(const std::string& call);
  bool is_seen(double since) const;
  void end(const std::string& id);

  os::Clock& clock_;
  mutable std::mutex mutex_;
  std::vector<std::string> calls_;
  std::map<std::string, std::vector<Error>> failures_;
  std::map<std::string, int> lost_;
  std::map<std::string, int> capacity_;
  double blindness_ = 0;
  int number_ = 0;  // of the next thing
  std::vector<Instance> machines_;
  std::map<std::string, std::string> orders_;  // what a token stood for
  std::vector<Resource> others_;               // all but machines
};

}  // namespace lockstep::cloud
