#include "lockstep/fetch/workers.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

namespace lockstep::fetch {

Result<void> run_workers(
    size_t count,
    int threads,
    const std::function<Result<void>(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  std::optional<Error> first;
  const auto body = [&] {
    while (!failed) {
      const size_t index = next.fetch_add(1);
      if (index >= count) {
        return;
      }
      if (auto done = work(index); !done) {
        const std::lock_guard lock(mutex);
        if (!first) {
          first = std::move(done.error());
        }
        failed = true;
      }
    }
  };
  std::vector<std::jthread> others;
  const size_t wanted =
      std::min(count, static_cast<size_t>(std::max(threads, 1)));
  for (size_t i = 1; i < wanted; ++i) {
    others.emplace_back(body);
  }
  body();
  others.clear();
  if (first) {
    return std::move(*first);
  }
  return {};
}

}  // namespace lockstep::fetch
