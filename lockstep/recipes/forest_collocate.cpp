#include <fmt/format.h>

#include <cstdio>
#include <mutex>

#include "lockstep/base/log.h"
#include "lockstep/forest/gather.h"
#include "lockstep/forest/granules.h"
#include "lockstep/forest/threads.h"
#include "lockstep/recipes/forest.h"
#include "lockstep/recipes/forest_scores.h"

namespace lockstep::recipes {

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
  const auto granules = together(forest::find_granules(options), group);
  group.barrier();  // nobody has finished one that another still looks for
  const auto track = together(forest::read_tracks(options), group);
  // Each rank every size()-th granule, its threads one at a time.
  const auto rank = static_cast<size_t>(group.rank());
  const auto ranks = static_cast<size_t>(group.size());
  const size_t own = (granules.size() + ranks - 1 - rank) / ranks;
  std::mutex mutex;
  Result<void> failure;
  forest::CollocationCount total;
  forest::for_pieces(
      own,
      fit_options(config, *run.environment).threads,
      [&](size_t piece, size_t) {
        const auto& granule = granules[piece * ranks + rank];
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
