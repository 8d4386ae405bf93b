#pragma once

// Collectives between the ranks of one host, in their shared memory. Every
// operation has a number; a rank publishes its arrival (what it called, where
// its data lies, when), and once all have arrived the operation is cut into
// one slice per rank. A rank does its own slice, in place, for all ranks; one
// that waits long enough also takes over slices of ranks that are not running.
// No thread of its own: progress happens inside the calls. Operations finish
// in the order in which they were launched.
//
// One thread at a time; abort(), mark_left() and failure() from any. Ranks here
// are indices within the host; messages use the ranks of the whole group.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/collective/communicator.h"
#include "lockstep/collective/failure.h"
#include "lockstep/collective/operation.h"
#include "lockstep/collective/shared_memory.h"

namespace lockstep::collective {

struct SharedGroupOptions {
  int index = 0;
  int size = 1;
  std::vector<int> ranks;  // by index, in the whole group
  bool spin = true;        // a core for each rank: waiting may spin
  Duration timeout = std::chrono::minutes(5);
  Duration extra{};  // added to it wherever wait() does not say otherwise
  std::shared_ptr<Memory> memory;    // ours
  std::vector<MappedMemory> others;  // by index; ours is empty
  MappedMemory control;              // control_bytes(size), of one file
  // Told of a failure that was found here, once it is set.
  std::function<void(const Failure&)> on_failure;
};

class SharedGroup {
 public:
  static size_t control_bytes(int size);

  explicit SharedGroup(SharedGroupOptions options);
  ~SharedGroup();
  SharedGroup(const SharedGroup&) = delete;
  SharedGroup& operator=(const SharedGroup&) = delete;

  // Launches and waits. `root` of the operation is an index.
  Timing run(const Operation& operation);

  // Returns the operation's number. `sink`, if any, gains the time that later
  // calls spend on it outside wait(), and must outlive the operation.
  uint64_t launch(const Operation& operation, Timing* sink = nullptr);
  // With `exact` the deadline is the timeout alone, without `extra`.
  Timing wait(uint64_t number, bool exact = false);
  bool done(uint64_t number);
  void progress();
  // Errors speak of this call of the user, of which operations here are parts.
  void speak_of(const Operation& operation, uint64_t number) {
    spoken_ = operation;
    spoken_number_ = number;
  }
  // Waits for everything that was launched.
  void drain();
  bool idle() const { return completed_ == launched_; }

  void abort(const Failure& failure);
  // Rank `index` has left in good order: waiting for it is hopeless.
  void mark_left(int index);
  std::optional<Failure> failure() const;
  bool failed() const;
  [[noreturn]] void throw_failure() const;

 private:
  struct Control;
  struct Arrival;
  struct Slice;
  enum class Stage : uint8_t { kArriving, kWorking, kFinishing };
  struct Pending {
    uint64_t number = 0;
    Operation operation;
    uint64_t signature = 0;
    uint64_t arrived = 0;  // ticks
    uint64_t last = 0;     // arrival of the last rank, ticks
    Timing* sink = nullptr;
    size_t slice = 0;  // elements of a slice
    size_t chunk = 0;  // elements that are claimed at once
    uint64_t num_chunks = 0;
    size_t staging = 0;
    bool staged = false;
    bool stolen = false;
    Stage stage = Stage::kArriving;
    int scan = 0;
  };
  // Operations under way at once; a further launch finishes the oldest.
  static constexpr uint64_t kRing = 32;

  Arrival& arrival(int index, uint64_t number) const;
  Slice& slice(int index, uint64_t number) const;
  Pending& pending(uint64_t number) { return pending_[number % kRing]; }
  std::byte* base(int index) const { return bases_[index]; }

  void make_room();
  void cut(Pending& p);
  void make_visible(std::atomic<uint64_t>& word, uint64_t value) const;
  void stage_in(Pending& p, bool blocking);
  void stage_out(Pending& p);
  uint64_t publish(const Operation& operation, Timing* sink, bool blocking);
  bool step(Pending& p, bool steal);
  bool can_step(const Pending& p) const;
  bool work(Pending& p, int index);
  void do_chunk(const Pending& p, int index, uint64_t chunk) const;
  void do_pieces(const Pending& p, int index, size_t begin, size_t end) const;
  size_t find_or_throw(const void* data, size_t count, DataType type) const;
  bool slice_done(const Pending& p, int index) const;
  void retire(Pending& p);
  void finish_oldest(bool exact = false);
  void finish_slowly(Pending& p, bool exact);
  void sleep(Pending& p, Duration most);
  void wake() const;
  [[noreturn]] void fail_mismatch(const Pending& p, int index);
  [[noreturn]] void fail_missing(const Pending& p, Duration waited);
  [[noreturn]] void fail(const Failure& failure);

  SharedGroupOptions options_;
  const int index_;
  const int size_;
  Control* control_;
  Arrival* arrivals_;
  Slice* slices_;
  std::vector<std::byte*> bases_;
  std::vector<std::atomic<bool>> left_;
  std::array<Pending, kRing> pending_;
  struct {
    uint64_t signature = ~uint64_t{0};
    size_t count = 0;
    size_t slice = 0;
    size_t chunk = 0;
    uint64_t num_chunks = 0;
  } last_cut_;
  uint64_t launched_ = 0;
  uint64_t completed_ = 0;
  const double tick_;
  const uint64_t spin_ticks_;
  Operation spoken_;
  uint64_t spoken_number_ = 0;  // 0: of ours
  size_t staging_ = 0;          // for blocking calls on memory of others
  size_t staging_bytes_ = 0;
};

}  // namespace lockstep::collective
