#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <mutex>

#include "lockstep/base/log.h"
#include "lockstep/forest/gather.h"
#include "lockstep/forest/granules.h"
#include "lockstep/forest/turns.h"
#include "lockstep/recipes/forest.h"
#include "lockstep/recipes/forest_scores.h"

namespace lockstep::recipes {
namespace {

// Hosts may have folders of their own: what is done is known by whoever did it,
// and all ranks share the same rest.
std::vector<forest::Granule> not_done_anywhere(
    const std::vector<forest::Granule>& granules,
    const forest::Track& track,
    const forest::CollocationOptions& options,
    collective::Communicator& group) {
  std::string own;
  for (const auto& granule : granules) {
    own += is_done(granule, track, options) ? 'd' : '-';
  }
  const auto all = forest::gather_bytes(own, group);
  std::vector<forest::Granule> rest;
  for (size_t i = 0; i < granules.size(); ++i) {
    if (std::ranges::none_of(
            all, [&](auto marks) { return marks[i] == 'd'; })) {
      rest.push_back(granules[i]);
    }
  }
  return rest;
}

// The same granules and track on all ranks.
void agree_on_inputs(
    const std::vector<forest::Granule>& granules,
    const forest::Track& track,
    const forest::CollocationOptions& options,
    collective::Communicator& group) {
  std::vector<std::string> facts = {
      fmt::format("{} granules", granules.size())};
  std::vector<std::string> names;
  for (const auto& granule : granules) {
    names.push_back(granule.bands.filename().string());
  }
  forest::add_facts(facts, "granule", names);
  given(
      forest::agree_on_facts(
          "list of granules", options.viirs.string(), facts, group));
  given(
      forest::agree_on_facts(
          "track",
          options.calipso.string(),
          {fmt::format("{} profiles", track.time.size())},
          group));
}

}  // namespace

int collocate_forest(const ForestConfig& config, const OwnRun& run) {
  auto& group = *run.group;
  const auto& from = config.collocate;
  if (from.calipso.empty() || from.viirs.empty()) {
    throw train::TrainError(
        train::kBadInput,
        "'collocate' needs collocate.calipso=FOLDER and "
        "collocate.viirs=FOLDER");
  }
  forest::CollocationOptions options;
  options.calipso = from.calipso;
  options.viirs = from.viirs;
  options.rows = from.rows;
  options.kilometres = from.distance;
  options.window = from.window;
  given(os::real_files().make_directories(options.rows));
  const auto found = together(forest::find_granules(options), group);
  const auto track = together(forest::read_tracks(options), group);
  agree_on_inputs(found, track, options, group);
  const auto granules = not_done_anywhere(found, track, options, group);
  std::mutex mutex;
  Result<void> failure;
  forest::CollocationCount total;
  // In turns, so that no rank waits in silence for a slower one.
  forest::grow_in_turns(
      granules.size(),
      fit_options(config, *run.environment).threads,
      group,
      [&](size_t i, size_t) {
        const auto& granule = granules[i];
        const auto count = collocate_granule(granule, track, options);
        const std::lock_guard lock(mutex);
        if (!count) {
          failure = Error(count.error());
          return;
        }
        total.profiles += count->profiles;
        total.near += count->near;
        total.rows += count->rows;
        log_info(
            fmt::format(
                "{}: {} profiles, {} near a pixel, {} rows",
                granule.time,
                count->profiles,
                count->near,
                count->rows));
      });
  given(forest::agree(failure, group));
  const auto sum = [&](uint64_t value) {
    return forest::sum_over_ranks(static_cast<int64_t>(value), group);
  };
  const int64_t profiles = sum(total.profiles);
  const int64_t near = sum(total.near);
  const int64_t rows = sum(total.rows);
  if (group.rank() == 0) {
    std::printf(
        "%zu granules: %lld profiles, %lld near a pixel, %lld rows in %s\n",
        granules.size(),
        static_cast<long long>(profiles),
        static_cast<long long>(near),
        static_cast<long long>(rows),
        from.rows.c_str());
  }
  return 0;
}

}  // namespace lockstep::recipes
