#pragma once

// The task of a forest: classes by entropy or Gini, numbers by squared error.
// What is counted in a histogram and how a split is judged by it are its
// members; loops over rows and bins are compiled once for each.

#include "lockstep/forest/class_task.h"
#include "lockstep/forest/options.h"
#include "lockstep/forest/table.h"
#include "lockstep/forest/value_task.h"

namespace lockstep::forest {

// Calls `use` with the task that the target and the options ask for.
template <class Use>
auto with_task(const Target& target, const FitOptions& options, Use&& use) {
  const int classes = target.num_classes();
  if (classes == 0) {
    return use(ValueTask(target, options));
  }
  const bool weighted = !options.class_weights.empty();
  if (options.criterion == Criterion::kGini) {
    return weighted ? use(ClassTask<false, true>(classes, options))
                    : use(ClassTask<false, false>(classes, options));
  }
  return weighted ? use(ClassTask<true, true>(classes, options))
                  : use(ClassTask<true, false>(classes, options));
}

}  // namespace lockstep::forest
