#include "lockstep/forest/turns.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

namespace lockstep::forest {
namespace {

using Clock = std::chrono::steady_clock;
using Grow = std::function<void(size_t tree, size_t thread)>;

// How often a rank looks whether a round of reports is over. An eighth of a
// tree is soon enough, since a tree is always waiting; a rank that has none
// looks more often.
constexpr Duration kIdleTick = std::chrono::microseconds(250);
constexpr Duration kShortTick = std::chrono::milliseconds(1);
constexpr Duration kLongTick = std::chrono::milliseconds(50);
// Every rank answers within a few ticks, whatever it grows: after so long one
// is lost, and a wait with a deadline says which.
constexpr Duration kPatience = std::chrono::seconds(1);

// A rank's threads and the trees that it was given.
class Crew {
 public:
  Crew(int threads, const Grow& grow) : grow_(grow) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this, i] { work(static_cast<size_t>(i)); });
    }
  }
  // Trees under way are finished, those that wait are not.
  ~Crew() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
  }
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void add(std::span<const size_t> trees) {
    {
      const std::lock_guard lock(mutex_);
      waiting_.insert(waiting_.end(), trees.begin(), trees.end());
    }
    changed_.notify_all();
  }

  // Trees finished, as soon as that is more than `known` or `most` is over.
  size_t finished(size_t known, Duration most) {
    std::unique_lock lock(mutex_);
    news_.wait_for(lock, most, [&] { return finished_ > known || failure_; });
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    return finished_;
  }

 private:
  void work(size_t thread) {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
      if (ending_) {
        return;
      }
      const size_t tree = waiting_.front();
      waiting_.pop_front();
      lock.unlock();
      std::exception_ptr failure;
      try {
        grow_(tree, thread);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure_ ? failure_ : failure;
      ++finished_;
      news_.notify_one();
    }
  }

  const Grow& grow_;
  std::mutex mutex_;
  std::condition_variable changed_;  // for the threads
  std::condition_variable news_;     // for the caller
  std::deque<size_t> waiting_;
  size_t finished_ = 0;
  bool ending_ = false;
  std::exception_ptr failure_;
  std::vector<std::jthread> threads_;  // ended before the rest goes
};

}  // namespace

Turns::Turns(size_t trees, size_t ranks) : trees_(trees), given_(ranks) {}

void Turns::hand_out(std::span<const TurnReport> reports) {
  std::vector<int64_t> free;
  finished_ = 0;
  for (size_t i = 0; i < given_.size(); ++i) {
    const int64_t under_way =
        static_cast<int64_t>(given_[i].size()) - reports[i].finished;
    free.push_back(reports[i].room - under_way);
    finished_ += static_cast<size_t>(reports[i].finished);
  }
  while (next_ < trees_) {
    const auto most = std::max_element(free.begin(), free.end());
    if (*most <= 0) {
      return;
    }
    given_[static_cast<size_t>(most - free.begin())].push_back(next_++);
    --*most;
  }
}

Turns grow_in_turns(
    size_t trees,
    int threads,
    collective::Communicator& group,
    const Grow& grow) {
  const auto ranks = static_cast<size_t>(group.size());
  const auto rank = static_cast<size_t>(group.rank());
  const size_t crew_size = static_cast<size_t>(std::max(1, threads));
  Turns turns(trees, ranks);
  const auto buffer = group.allocate(ranks * sizeof(TurnReport));
  auto* const reports = static_cast<TurnReport*>(buffer.data());
  Crew crew(static_cast<int>(crew_size), grow);
  const auto begun = Clock::now();
  size_t finished = 0;
  size_t told = 0;
  const auto tick = [&] {
    if (finished == turns.of(rank).size()) {
      return kIdleTick;
    }
    const size_t rounds = std::max<size_t>(1, finished / crew_size);
    return std::clamp<Duration>(
        (Clock::now() - begun) / (8 * rounds), kShortTick, kLongTick);
  };
  while (!turns.all_finished()) {
    // As many wait as are grown at once, or as a slower rank lets pass between
    // two rounds.
    const size_t ahead = std::max(crew_size, 2 * (finished - told));
    told = finished;
    reports[rank] = {
        static_cast<int64_t>(finished),
        static_cast<int64_t>(crew_size + ahead)};
    auto round = group.all_gather_async(
        reports, sizeof(TurnReport), collective::DataType::kUint8);
    const auto launched = Clock::now();
    while (!round.done() && Clock::now() - launched < kPatience) {
      finished = crew.finished(finished, tick());
    }
    round.wait();
    const size_t known = turns.of(rank).size();
    turns.hand_out({reports, ranks});
    crew.add(turns.of(rank).subspan(known));
    if (!turns.all_finished()) {
      finished = crew.finished(told, 2 * tick());
    }
  }
  return turns;
}

void work_together(
    collective::Communicator& group,
    const std::function<void()>& work) {
  // As many pieces as ranks, which all have the same room: one for each.
  grow_in_turns(
      static_cast<size_t>(group.size()), 1, group, [&](size_t, size_t) {
        work();
      });
}

}  // namespace lockstep::forest
