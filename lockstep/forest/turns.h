#pragma once

// Trees that the ranks of a group grow in turns: a rank is given more while it
// works on what it has, so that a faster one grows more and nobody waits long
// for the last; and other work that is shared so. Reports of a few bytes go
// round; every rank draws the same conclusion from them, so that no rank
// decides for the others. Throws CollectiveError.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lockstep/collective/communicator.h"

namespace lockstep::forest {

// What a rank tells the others.
struct TurnReport {
  int64_t finished = 0;  // trees in all
  int64_t room = 0;      // trees that it may have at once, waiting or growing
};

// Who grows which tree. Pure: the same reports in the same order give the same
// answer everywhere.
class Turns {
 public:
  Turns(size_t trees, size_t ranks);
  // The latest of every rank. Each is filled up to its room, the emptiest
  // first.
  void hand_out(std::span<const TurnReport> reports);
  // In the order handed out.
  std::span<const size_t> of(size_t rank) const { return given_[rank]; }
  bool all_finished() const { return finished_ == trees_; }

 private:
  size_t trees_;
  size_t next_ = 0;
  size_t finished_ = 0;
  std::vector<std::vector<size_t>> given_;  // by rank
};

// Calls `grow(tree, thread)` once for each tree below `trees` on one of the
// ranks, from `threads` threads of each (their number may differ); all ranks
// call together. Returns who grew which. What `grow` throws is thrown here
// after the threads have ended.
Turns grow_in_turns(
    size_t trees,
    int threads,
    collective::Communicator& group,
    const std::function<void(size_t tree, size_t thread)>& grow);

// Calls `work` once on each rank, and waits for the others as long as they
// answer, however long their work takes.
void work_together(
    collective::Communicator& group,
    const std::function<void()>& work);

}  // namespace lockstep::forest
