// plan_bench ROUNDS: the median milliseconds of planning 10,000 configurations
// (200 machines, up to 50 nodes each) and of one decision of the optimiser over
// 40 kinds of machines, each a line of JSON.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <random>
#include <vector>

#include "lockstep/economics/optimise.h"
#include "lockstep/economics/plan.h"

namespace {

using namespace lockstep::economics;  // NOLINT: a program of one file

double median_ms(int rounds, const std::function<void()>& action) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    action();
    times.push_back(
        std::chrono::duration<double, std::milli>(
            std::chrono::steady_clock::now() - begin)
            .count());
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

std::vector<PlanOffer> make_offers(std::mt19937_64& random) {
  std::uniform_real_distribution<double> some(.1, 4);
  std::vector<PlanOffer> offers(200);
  for (size_t i = 0; i < offers.size(); ++i) {
    offers[i].machine = {
        .name = fmt::format("m{}", i), .dollars_per_hour = some(random)};
    offers[i].scaling = {.compute = some(random), .spread = .05, .measured = 8};
    offers[i].most_nodes = 50;
  }
  return offers;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 21;
  std::mt19937_64 random(7);
  const auto offers = make_offers(random);
  size_t rows = 0;
  const double plan = median_ms(rounds, [&] {
    rows =
        make_plan(offers, {.samples = 1e6, .samples_a_node = 32}).rows.size();
  });
  std::vector<CatalogueEntry> catalogue;
  for (const PlanOffer& offer : offers) {
    if (catalogue.size() < 40) {
      catalogue.push_back(
          {offer.machine.name,
           offer.machine.dollars_per_hour,
           60,
           16,
           offer.scaling.compute});
    }
  }
  History history;
  history.periods.push_back({{{"n0", 0, 1, .05}, {"n1", 1, 2, .05}}, .1, true});
  history.samples_left = 1e6;
  const double decision =
      median_ms(rounds, [&] { (void)decide(history, catalogue); });
  fmt::print(
      "{{\"configurations\": {}, \"plan_ms\": {:.3f}, \"decide_ms\": "
      "{:.3f}}}\n",
      rows,
      plan,
      decision);
}
