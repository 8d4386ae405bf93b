#pragma once

// A set of machines that could train the rest of a run: how fast, at what
// price, and what it takes to get there from the present one. Private to the
// optimiser. Pure.

#include <span>
#include <string>
#include <vector>

#include "lockstep/economics/optimise.h"

namespace lockstep::economics {

struct Member {
  std::string name;  // empty: new
  size_t kind = 0;
  double compute = 0;
  double spread = 0;
};

struct ClusterSet {
  std::vector<Member> members;
  double samples_per_second = 0;
  double dollars_per_hour = 0;
  double spread = 0;  // of ln(speed)
};

// Speed and price of these members. `communication` is for `measured` nodes.
ClusterSet make_set(
    std::vector<Member> members,
    std::span<const CatalogueEntry> catalogue,
    const OptimiseOptions& options,
    double communication,
    int measured);

// What the rest of the run takes on a set.
double rest_seconds(const ClusterSet& set, double samples);
double rest_dollars(const ClusterSet& set, double samples);

// Dollars of going over: the boot of the new and the pause of all.
double change_dollars(
    const ClusterSet& from,
    const ClusterSet& to,
    std::span<const CatalogueEntry> catalogue,
    double pause);

}  // namespace lockstep::economics
