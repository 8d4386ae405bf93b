#pragma once

// For tests of the fleet: nodes that answer as told, prices, a cluster.

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <mutex>

#include "lockstep/cloud/fake_provider.h"
#include "lockstep/fleet/fleet.h"

namespace lockstep::fleet {

class FakeShell : public NodeShell {
 public:
  explicit FakeShell(os::Clock& clock) : clock_(clock) {}
  Result<std::string>
  run(const Node& node, const std::string& script, os::Deadline) override {
    const std::lock_guard lock(mutex);
    scripts[node.name].push_back(script);
    if (asked) {
      asked();
    }
    if (silent.contains(node.name)) {
      return Error(ErrorCode::kUnavailable, "Connection refused").with_retry();
    }
    if (const auto found = failing.find(node.name);
        found != failing.end() &&
        script.find(found->second) != std::string::npos) {
      return Error(ErrorCode::kInvalidInput, "exit code 7: no such package");
    }
    return "lease " + std::to_string(clock_.unix_seconds() + 600) + " " +
           std::to_string(clock_.unix_seconds());
  }
  std::function<void()> asked;  // at each script
  std::set<std::string> silent;
  std::map<std::string, std::string> failing;  // node: part of a script
  std::map<std::string, std::vector<std::string>> scripts;
  std::mutex mutex;

 private:
  os::Clock& clock_;
};

class FakePrices : public cloud::PriceList {
 public:
  Result<std::vector<cloud::Price>> prices(
      const std::string& type,
      const std::string& region) override {
    if (type == "unknown.type") {
      return std::vector<cloud::Price>();
    }
    cloud::Price price;
    price.type = type;
    price.region = region;
    price.hourly = Money::from_dollars(1);
    cloud::Price spot = price;
    spot.market = cloud::Market::kSpot;
    spot.hourly = Money::from_dollars(0.25);
    return std::vector<cloud::Price>{price, spot};
  }
};

inline Cluster small_cluster(int count = 2) {
  Cluster cluster;
  cluster.name = "blue";
  NodeGroup group;
  group.type = "c5.xlarge";
  group.count = count;
  group.minimum = count;
  cluster.groups = {group};
  return cluster;
}

// One cloud, one machine with a journal; commands come and die.
class World {
 public:
  World() : cloud(clock), shell(clock) {
    static std::atomic<int> number = 0;
    folder = std::filesystem::temp_directory_path() /
             ("lockstep-fleet-" + std::to_string(::getpid()) + "-" +
              std::to_string(++number));
    std::filesystem::remove_all(folder);
    book.add(prices);
  }
  ~World() { std::filesystem::remove_all(folder); }

  FleetOptions options(Journal& journal) {
    FleetOptions options;
    options.provider = &cloud;
    options.journal = &journal;
    options.shell = &shell;
    options.clock = &clock;
    options.cluster = "blue";
    options.owner = "me@here";
    options.public_key = "ssh-ed25519 AAAATest";
    options.ssh_from = {"203.0.113.7/32"};
    options.stopped = [this] { return stopped; };
    return options;
  }
  Result<std::vector<Node>> up(
      const Cluster& cluster,
      std::function<Result<void>(int, JournalOptions::Moment)> hook = {}) {
    JournalOptions where;
    where.folder = folder;
    where.clock = &clock;
    where.hook = std::move(hook);
    LOCKSTEP_ASSIGN(const auto journal, Journal::open(where));
    LOCKSTEP_ASSIGN(const Plan plan, make_plan(cloud, book, cluster));
    Fleet fleet(options(*journal));
    return fleet.acquire(cluster, plan);
  }
  Result<void> down() {
    LOCKSTEP_ASSIGN(
        const auto journal,
        Journal::open({.folder = folder, .clock = &clock, .hook = {}}));
    return Fleet(options(*journal)).release();
  }
  size_t num_things() {
    size_t number = 0;
    for (const auto kind : cloud::kResourceKinds) {
      const auto found = *cloud.resources(kind, {});
      for (const auto& one : found) {
        number += one.is_over ? 0 : 1;
      }
    }
    return number;
  }

  os::FakeClock clock;
  cloud::FakeProvider cloud;
  FakeShell shell;
  FakePrices prices;
  cloud::PriceBook book;
  os::Path folder;
  bool stopped = false;
};

}  // namespace lockstep::fleet
