#pragma once

// The processes below us, found through /proc: what a child subreaper must
// end before it may go. Reads the whole process table, so only for the end of
// a run, never on its way.

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

namespace lockstep::launch {

// Makes orphans below us our children, whatever session they moved to.
void become_subreaper();

// Every living descendant of `root` (zombies left out), in no order; without
// the trees of `spared`.
std::vector<int> descendants(int root, const std::set<int>& spared = {});

// Sends a signal to every one of them; how many there were.
size_t
signal_descendants(int root, int number, const std::set<int>& spared = {});

// SIGKILL to all descendants of this process, and reaps, until none is left or
// the seconds have passed. True when none is left.
bool end_descendants(double seconds);

// Start of a process in clock ticks since boot (with the pid it names one
// process for good); none when it does not exist or is a zombie.
std::optional<uint64_t> start_ticks(int pid);

}  // namespace lockstep::launch
