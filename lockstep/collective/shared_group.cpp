#include "lockstep/collective/shared_group.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/base/check.h"
#include "lockstep/collective/shared_group_layout.h"
#include "lockstep/collective/ticks.h"
#include "lockstep/os/clock.h"

namespace lockstep::collective {
namespace {

// An operation of fewer bytes is done by its last arrival when others sleep:
// waking them costs more.
constexpr size_t kSmallBytes = 64 << 10;
constexpr int kQuickSpins = 200;
constexpr double kSpinSeconds = 100e-6;
constexpr double kYieldSeconds = 200e-6;
constexpr double kLandingSeconds = 2e-6;
constexpr Duration kNap = std::chrono::milliseconds(20);
constexpr double kStealSeconds = 3e-6;
constexpr double kSlowBytesPerSecond = 3e9;

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, Duration most) {
  const int64_t nanos = std::max<int64_t>(most.count(), 0);
  const timespec time = {nanos / 1'000'000'000, nanos % 1'000'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

}  // namespace

size_t SharedGroup::control_bytes(int size) {
  return sizeof(Control) +
         static_cast<size_t>(size) * kRing * (sizeof(Arrival) + sizeof(Slice));
}

SharedGroup::SharedGroup(SharedGroupOptions options)
    : options_(std::move(options)),
      index_(options_.index),
      size_(options_.size),
      left_(static_cast<size_t>(options_.size)),
      tick_(seconds_per_tick()),
      spin_ticks_(
          static_cast<uint64_t>(
              (options_.spin ? kSpinSeconds : kYieldSeconds) / tick_)) {
  LOCKSTEP_CHECK_LE(size_, kMaxRanks);
  std::byte* at = options_.control.data();
  control_ = reinterpret_cast<Control*>(at);
  arrivals_ = reinterpret_cast<Arrival*>(at + sizeof(Control));
  slices_ =
      reinterpret_cast<Slice*>(arrivals_ + static_cast<size_t>(size_) * kRing);
  for (int i = 0; i < size_; ++i) {
    bases_.push_back(
        i == index_ ? options_.memory->data()
                    : options_.others[static_cast<size_t>(i)].data());
  }
}

SharedGroup::~SharedGroup() {
  // After a failure a peer may still write there: leave it alone.
  if (staging_bytes_ > 0 && !failed()) {
    options_.memory->give(staging_);
  }
}

// Whoever stores here looks for sleepers next, and a sleeper looks here after
// it has counted itself: one must see the other. Sleepers can pay for that
// better than a rank that is about to spin, whose loads would otherwise wait
// for its store to reach the other core: see sleep().
inline void SharedGroup::make_visible(
    std::atomic<uint64_t>& word,
    uint64_t value) const {
  // An order that is chosen at run time would be the strict one always.
  if (options_.spin) {
    word.store(value, std::memory_order_release);
  } else {
    word.store(value, std::memory_order_seq_cst);
  }
}

uint64_t
SharedGroup::publish(const Operation& operation, Timing* sink, bool blocking) {
  if (failed()) [[unlikely]] {
    throw_failure();
  }
  const uint64_t number = launched_ + 1;
  Pending& p = pending(number);
  p.number = number;
  p.operation = operation;
  p.signature = operation.signature();
  p.last = 0;
  p.sink = sink;
  p.staged = false;
  p.stolen = false;
  p.stage = Stage::kArriving;
  p.scan = 0;
  cut(p);
  size_t offset = 0;
  size_t part = 0;
  if (operation.pieces != nullptr) {
    const Pieces& pieces = *operation.pieces;
    offset = find_or_throw(operation.data, pieces.whole, operation.type);
    part = find_or_throw(operation.part, pieces.part, operation.type);
  } else if (p.num_chunks > 0) {
    const auto found =
        options_.memory->find(operation.data, operation.bytes(size_));
    if (found && *found % size_of(operation.type) == 0) [[likely]] {
      offset = *found;
    } else {
      stage_in(p, blocking);
      offset = p.staging;
    }
  }
  Arrival& mine = arrival(index_, number);
  p.arrived = ticks();
  mine.ticks = p.arrived;
  mine.signature = p.signature;
  mine.count = operation.count;
  mine.offset = offset;
  mine.part = part;
  launched_ = number;
  make_visible(mine.number, number);
  // Peers have looked at these lines: take them back while we wait for them.
  fetch_for_writing(&slice(index_, number).finished);
  fetch_for_writing(&arrival(index_, number + 1));
  return number;
}

bool SharedGroup::step(Pending& p, bool steal) {
  if (p.stage == Stage::kArriving) {
    while (p.scan < size_) {
      const Arrival& a = arrival(p.scan, p.number);
      const uint64_t number = a.number.load(std::memory_order_acquire);
      if (number < p.number) {
        return false;
      }
      if (a.signature != p.signature || a.count != p.operation.count)
          [[unlikely]] {
        // A later number means that ours is over and the entry was reused.
        if (a.number.load(std::memory_order_acquire) == p.number) {
          fail_mismatch(p, p.scan);
        }
      }
      p.last = std::max(p.last, a.ticks);
      ++p.scan;
    }
    p.scan = 0;
    p.stage = Stage::kWorking;
    const bool small = p.operation.bytes(size_) <= kSmallBytes;
    if (control_->sleepers.load(std::memory_order_seq_cst) > 0) {
      if (p.num_chunks == 0 || !small) {
        wake();
      } else {
        steal = true;
      }
    }
  }
  if (p.num_chunks == 0) {
    return true;
  }
  if (p.stage == Stage::kWorking) {
    work(p, index_);
    p.stage = Stage::kFinishing;
  }
  if (steal && !p.stolen) {
    for (int i = 1; i < size_; ++i) {
      work(p, (index_ + i) % size_);
    }
    p.stolen = true;
  }
  while (p.scan < size_) {
    if (!slice_done(p, p.scan)) {
      return false;
    }
    ++p.scan;
  }
  return true;
}

// Takes chunks of a slice until none is left. A claim keeps the operation
// open, so that arrivals stay readable until it is finished.
bool SharedGroup::work(Pending& p, int index) {
  Slice& s = slice(index, p.number);
  bool any = false;
  const uint64_t first = p.number << kChunkBits;
  uint64_t claimed = s.claimed.load(std::memory_order_relaxed);
  for (;;) {
    uint64_t chunk = 0;
    if (claimed >> kChunkBits > p.number) {
      break;
    }
    if (claimed >> kChunkBits == p.number) {
      chunk = claimed - first;
      if (chunk >= p.num_chunks) {
        break;
      }
    }
    if (!s.claimed.compare_exchange_weak(
            claimed, first + chunk + 1, std::memory_order_acq_rel)) {
      continue;
    }
    do_chunk(p, index, chunk);
    any = true;
    if (p.num_chunks == 1) {
      make_visible(s.finished, first + 1);
    } else {
      uint64_t finished = s.finished.load(std::memory_order_relaxed);
      while (!s.finished.compare_exchange_weak(
          finished,
          finished >> kChunkBits == p.number ? finished + 1 : first + 1,
          std::memory_order_seq_cst)) {}
    }
    claimed = s.claimed.load(std::memory_order_relaxed);
  }
  if (any && control_->sleepers.load(std::memory_order_seq_cst) > 0) {
    bool all = true;
    for (int i = 0; all && i < size_; ++i) {
      all = slice_done(p, i);
    }
    if (all) {
      wake();
    }
  }
  return any;
}

// Whether what step() waits for has come.
inline bool SharedGroup::can_step(const Pending& p) const {
  return p.stage == Stage::kArriving
             ? arrival(p.scan, p.number)
                       .number.load(std::memory_order_relaxed) >= p.number
             : slice_done(p, p.scan);
}

void SharedGroup::retire(Pending& p) {
  if (p.staged) {
    stage_out(p);
  }
  completed_ = p.number;
}

void SharedGroup::finish_oldest(bool exact) {
  Pending& p = pending(completed_ + 1);
  int spins = options_.spin ? kQuickSpins : 1;
  while (!step(p, !options_.spin)) {
    // As few instructions as can be: who we wait for may share our core.
    do {
      if (--spins < 0) {
        finish_slowly(p, exact);
        return;
      }
      pause_briefly();
    } while (!can_step(p));
  }
  retire(p);
}

void SharedGroup::finish_slowly(Pending& p, bool exact) {
  const Duration patience =
      options_.timeout + (exact ? Duration{} : options_.extra);
  const uint64_t start = ticks();
  const os::Deadline deadline = os::Deadline::after(patience);
  uint64_t arrived = 0;
  for (;;) {
    bool steal = !options_.spin;
    if (!steal && p.stage == Stage::kFinishing && !p.stolen) {
      // The others had as long as we needed, and a little more: they are not
      // running, or much slower.
      const uint64_t now = ticks();
      if (arrived == 0) {
        arrived = now;
      }
      const double bytes = static_cast<double>(p.operation.bytes(size_));
      const double fair = kStealSeconds + bytes / kSlowBytesPerSecond;
      steal = static_cast<double>(now - arrived) * tick_ > fair;
    }
    if (step(p, steal)) {
      retire(p);
      return;
    }
    // Only now: what everybody has arrived at still completes.
    if (failed()) {
      throw_failure();
    }
    if (p.stage == Stage::kArriving &&
        left_[static_cast<size_t>(p.scan)].load() &&
        arrival(p.scan, p.number).number.load() < p.number) {
      const int rank = options_.ranks[static_cast<size_t>(p.scan)];
      fail(
          {fmt::format(
               "{} (operation {}): rank {} has left the group",
               describe(p.operation),
               p.number,
               rank),
           {rank}});
    }
    if (ticks() - start < spin_ticks_) {
      // Without a core for each rank the others need this one.
      options_.spin ? pause_briefly() : static_cast<void>(sched_yield());
      continue;
    }
    if (deadline.passed()) {
      fail_missing(p, patience);
    }
    sleep(p, deadline.left());
  }
}

void SharedGroup::sleep(Pending& p, Duration most) {
  control_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t event = control_->event.load(std::memory_order_seq_cst);
  if (options_.spin) {
    // Stores made before their owner could see us have landed by then.
    const uint64_t start = ticks();
    while (static_cast<double>(ticks() - start) * tick_ < kLandingSeconds) {
      pause_briefly();
    }
  }
  // A last look, now that wakers see us. Also done when it fails: the count
  // must not stay.
  bool ready = true;
  try {
    ready = failed() || step(p, !options_.spin);
  } catch (...) {
    control_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
    throw;
  }
  if (!ready) {
    futex_wait(control_->event, event, std::min<Duration>(most, kNap));
  }
  control_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void SharedGroup::make_room() {
  while (launched_ - completed_ >= kRing) {
    finish_oldest();
  }
}

Timing SharedGroup::run(const Operation& operation) {
  make_room();
  const uint64_t number = publish(operation, nullptr, idle());
  while (completed_ < number) {
    finish_oldest();
  }
  const Pending& p = pending(number);
  const uint64_t end = ticks();
  const uint64_t wait = p.last > p.arrived ? p.last - p.arrived : 0;
  const uint64_t total = end - p.arrived;
  return {
      static_cast<double>(std::min(wait, total)) * tick_,
      static_cast<double>(total - std::min(wait, total)) * tick_};
}

uint64_t SharedGroup::launch(const Operation& operation, Timing* sink) {
  make_room();
  const uint64_t number = publish(operation, sink, false);
  // We look once and go: of two arrivals at least one must see the other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  progress();
  return number;
}

void SharedGroup::progress() {
  if (failed()) {
    return;  // the wait that follows says why
  }
  while (!idle()) {
    Pending& p = pending(completed_ + 1);
    const uint64_t start = ticks();
    const bool complete = step(p, false);
    if (complete) {
      retire(p);
    }
    if (p.sink != nullptr) {
      p.sink->busy += static_cast<double>(ticks() - start) * tick_;
    }
    if (!complete) {
      return;
    }
  }
}

void SharedGroup::drain() {
  while (!idle()) {
    finish_oldest();
  }
}

Timing SharedGroup::wait(uint64_t number, bool exact) {
  if (completed_ >= number) {
    return {};
  }
  const uint64_t start = ticks();
  while (completed_ < number) {
    finish_oldest(exact);
  }
  const Pending& p = pending(number);
  const uint64_t end = ticks();
  const uint64_t wait =
      std::min(p.last > start ? p.last - start : 0, end - start);
  return {
      static_cast<double>(wait) * tick_,
      static_cast<double>(end - start - wait) * tick_};
}

bool SharedGroup::failed() const {
  return control_->failed.load(std::memory_order_relaxed) != 0;
}

bool SharedGroup::done(uint64_t number) {
  if (completed_ < number) {
    progress();
  }
  return completed_ >= number || failed();
}

}  // namespace lockstep::collective
