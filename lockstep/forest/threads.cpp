#include "lockstep/forest/threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace lockstep::forest {

void for_pieces(
    size_t pieces,
    int threads,
    const std::function<void(size_t piece, size_t thread)>& use) {
  std::atomic<size_t> next{0};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&](size_t thread) {
    try {
      for (size_t piece = next++; piece < pieces; piece = next++) {
        use(piece, thread);
      }
    } catch (...) {
      next = pieces;
      const std::lock_guard lock(mutex);
      failure = failure ? failure : std::current_exception();
    }
  };
  const size_t helpers =
      std::min(static_cast<size_t>(std::max(1, threads)), pieces);
  std::vector<std::jthread> started;
  for (size_t i = 1; i < helpers; ++i) {
    started.emplace_back(work, i);
  }
  work(0);
  started.clear();
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace lockstep::forest
