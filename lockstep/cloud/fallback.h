#pragma once

// Launches somewhere: walks a list of places (type, zone, market) in order and
// takes the first that has room. Only a shortage (capacity, quota) leads to the
// next place; any other failure ends the walk. Every attempt has a token of its
// own, made from the order's and the place, because a cloud refuses one token
// for two different orders. `before` is called with the exact order of each
// attempt before it is sent, and its error ends the walk: a journal writes
// there, so that a crash at any point leaves at most one attempt of which
// nobody knows how it went. Who goes on after a crash first looks for machines
// that carry the tag kTokenTag of this order, and repeats only the last attempt
// of the journal: walking again from the start could launch twice.

#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/cloud/provider.h"

namespace lockstep::cloud {

struct LaunchPlace {
  std::string type;
  std::string zone;    // empty: any
  std::string subnet;  // empty: the order's
  Market market = Market::kOnDemand;
  std::string image;  // of its architecture; empty: the order's
};

struct Launched {
  LaunchPlace place;
  std::vector<Instance> instances;
  std::vector<std::string> refused;  // why not the places before, in order
};

// The order for one place: its token and the tag kTokenTag are set.
LaunchOrder order_for(const LaunchOrder& order, const LaunchPlace& place);

// `place` fills in what each attempt changes. When all are short the error has
// the class of the last one and names every place with its reason.
Result<Launched> launch_anywhere(
    Provider& provider,
    const LaunchOrder& order,
    const std::vector<LaunchPlace>& places,
    const std::function<Result<void>(const LaunchOrder&)>& before);

}  // namespace lockstep::cloud
