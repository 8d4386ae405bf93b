// How a SharedGroup dies: the first reason is kept where all ranks read it.
#include "lockstep/collective/shared_group_layout.h"

#include <fmt/format.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <thread>

namespace lockstep::collective {
namespace {

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

void SharedGroup::wake() const {
  control_->event.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(control_->event);
}

void SharedGroup::abort(const Failure& failure) {
  uint32_t none = 0;
  if (control_->failed.compare_exchange_strong(none, 1)) {
    const size_t size = std::min(failure.reason.size(), kMaxReason);
    std::memcpy(control_->reason, failure.reason.data(), size);
    control_->reason_size = static_cast<uint32_t>(size);
    const size_t num = std::min<size_t>(failure.ranks.size(), kMaxFailedRanks);
    std::copy_n(failure.ranks.begin(), num, control_->ranks);
    control_->num_ranks = static_cast<int32_t>(num);
    control_->failed.store(2, std::memory_order_release);
  }
  wake();
}

void SharedGroup::mark_left(int index) {
  left_[static_cast<size_t>(index)].store(true);
  wake();
}

std::optional<Failure> SharedGroup::failure() const {
  uint32_t state = control_->failed.load(std::memory_order_acquire);
  if (state == 0) {
    return std::nullopt;
  }
  // The writer may have been killed between the two stores.
  for (int i = 0; state != 2 && i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    state = control_->failed.load(std::memory_order_acquire);
  }
  if (state != 2) {
    return Failure{"the group was aborted", {}};
  }
  return Failure{
      std::string(control_->reason, control_->reason_size),
      std::vector<int>(control_->ranks, control_->ranks + control_->num_ranks)};
}

void SharedGroup::throw_failure() const {
  const Failure why = failure().value_or(Failure{});
  throw CollectiveError(why.reason, why.ranks);
}

void SharedGroup::fail(const Failure& failure) {
  abort(failure);
  if (options_.on_failure) {
    options_.on_failure(failure);
  }
  throw_failure();
}

void SharedGroup::fail_mismatch(const Pending& p, int index) {
  const Arrival& a = arrival(index, p.number);
  fail(
      {fmt::format(
           "ranks disagree on operation {}: rank {} called {}, rank {} "
           "called {}",
           p.number,
           options_.ranks[static_cast<size_t>(index_)],
           describe(p.operation),
           options_.ranks[static_cast<size_t>(index)],
           describe(a.signature, a.count)),
       {}});
}

void SharedGroup::fail_missing(const Pending& p, Duration waited) {
  std::vector<int> missing;
  const bool arriving = p.stage == Stage::kArriving;
  for (int i = 0; i < size_; ++i) {
    const bool there = arriving ? arrival(i, p.number).number.load() >= p.number
                                : slice_done(p, i);
    if (!there) {
      missing.push_back(options_.ranks[static_cast<size_t>(i)]);
    }
  }
  fail(
      {fmt::format(
           "{} (operation {}): {} {} after {}",
           describe(spoken_number_ > 0 ? spoken_ : p.operation),
           spoken_number_ > 0 ? spoken_number_ : p.number,
           name_ranks(missing),
           arriving ? "did not arrive" : "did not finish",
           format_duration(waited)),
       missing});
}

}  // namespace lockstep::collective
