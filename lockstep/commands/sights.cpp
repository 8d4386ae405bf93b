#include "lockstep/commands/sights.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "lockstep/economics/robust.h"

namespace lockstep::commands {
namespace {

// What medians of a few steps cannot tell about the next ones.
constexpr double kLeastSpread = 0.02;

Sights::Node node_of(const std::vector<double>& values) {
  Sights::Node node;
  if (values.empty()) {
    return node;
  }
  node.compute = economics::median(values);
  double away = 0;
  for (const double value : values) {
    away += std::abs(value - node.compute);
  }
  const auto count = static_cast<double>(values.size());
  // Of a normal: deviation = 1.25 x mean distance; a median's error 1.25 of it.
  node.spread = std::max(
      kLeastSpread,
      1.25 * 1.25 * away / count / (node.compute * std::sqrt(count)));
  return node;
}

}  // namespace

void Sights::take(const wire::Event& event) {
  if (const auto* init = std::get_if<wire::Init>(&event.body)) {
    const auto found = init->facts.find("total_steps");
    const double total =
        found == init->facts.end() ? 0 : std::atof(found->second.c_str());
    if (total > 0) {
      total_steps_ = total;
    }
    return;
  }
  const auto* one = std::get_if<wire::Iteration>(&event.body);
  if (one == nullptr || event.rank < 0 || one->samples <= 0) {
    return;
  }
  if (first_time_ == 0) {
    first_time_ = event.time;
  }
  Part& part = steps_[one->step][event.rank];
  part.samples = static_cast<double>(one->samples);
  part.seconds = one->compute + one->data;
  part.communication = one->communication;
  part.split = one->wait > 0 || one->communication > 0;
}

int64_t Sights::last_step() const {
  return steps_.empty() ? 0 : steps_.rbegin()->first;
}

Sights::Look Sights::look(int64_t first, size_t nodes) const {
  const size_t world = nodes * static_cast<size_t>(ranks_a_node_);
  std::vector<std::vector<double>> computes(nodes);
  std::vector<double> communications;
  Look result;
  for (auto step = steps_.lower_bound(first); step != steps_.end(); ++step) {
    if (step->second.size() != world) {
      continue;  // one was dropped, or is still on its way
    }
    ++result.steps;
    std::vector<Part> parts(nodes);
    const Part* slowest = nullptr;
    bool is_split = world == 1;
    for (const auto& [rank, part] : step->second) {
      const auto at = static_cast<size_t>(rank / ranks_a_node_);
      if (at >= nodes) {
        continue;
      }
      parts[at].samples += part.samples;
      parts[at].seconds = std::max(parts[at].seconds, part.seconds);
      is_split = is_split || part.split;
      if (slowest == nullptr || part.seconds > slowest->seconds) {
        slowest = &part;
      }
    }
    communications.push_back(slowest->communication);
    for (size_t i = 0; i < nodes; ++i) {
      // Many ranks, and none ever waits: the wait is hidden in the rest.
      if (is_split && parts[i].seconds > 0) {
        computes[i].push_back(parts[i].seconds / parts[i].samples);
      }
    }
  }
  for (const auto& values : computes) {
    result.nodes.push_back(node_of(values));
  }
  result.communication =
      communications.empty() ? 0 : economics::median(communications);
  return result;
}

}  // namespace lockstep::commands
