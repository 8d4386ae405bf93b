#pragma once

// The same work on many things, by a few threads at once. Internal to fetch.

#include <cstddef>
#include <functional>

#include "lockstep/base/result.h"

namespace lockstep::fetch {

// Calls work(0) ... work(count - 1), each once, in no order, on at most
// `threads` threads, one of them the caller's. After the first error no new
// work is begun; that error is returned once all threads are done.
Result<void> run_workers(
    size_t count,
    int threads,
    const std::function<Result<void>(size_t)>& work);

}  // namespace lockstep::fetch
