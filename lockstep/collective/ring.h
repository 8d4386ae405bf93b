#pragma once

// Collectives between hosts, over one TCP connection for each pair of them (two
// hosts have one for each way), called by the lowest rank of each host. Large
// data goes round a ring as one stream of bytes: what has been received and
// reduced is sent on at once, with no framing, in both directions at the same
// time. Small data goes to all others directly and is summed by everybody in
// the same order. One thread at a time. Fails (throws CollectiveError) when the
// deadline passes, a peer is gone or the group is aborted.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/collective/failure.h"
#include "lockstep/collective/operation.h"
#include "lockstep/collective/ring_plan.h"
#include "lockstep/os/socket.h"

namespace lockstep::collective {

struct RingOptions {
  int index = 0;                                       // of this host
  std::vector<std::vector<int>> ranks;                 // of each host
  std::vector<std::unique_ptr<os::Connection>> peers;  // by host; ours is null
  // Of two hosts, for the stream from the second to the first: both ways on one
  // socket wait for its lock.
  std::unique_ptr<os::Connection> back;
  Duration timeout = std::chrono::minutes(5);
  bool spin = true;
  int aborted = -1;  // a descriptor that is readable once the group is dead
  // Called while waiting.
  std::function<void()> idle;
  // Ends the group; returns why it is dead already, if it is.
  std::function<Failure(const Failure& failure)> fail;
};

class Ring {
 public:
  explicit Ring(RingOptions options);
  int size() const { return size_; }

  // Begins an operation: returns once all hosts have begun the same one, else
  // fails. `operation` is only compared.
  void meet(const Operation& operation);

  // meet() and all-reduce in one, for data of at most direct_bytes().
  static size_t direct_bytes(int num_hosts);
  void meet_and_reduce(const Operation& operation, std::byte* data);

  // After meet(), any number of these.
  void all_reduce(std::byte* data, size_t count, DataType type, ReduceOp op);
  // `parts` by host; ours becomes the reduction, others are undefined.
  void reduce_scatter(
      std::byte* data,
      const std::vector<Extents>& parts,
      DataType type,
      ReduceOp op);
  void all_gather(std::byte* data, const std::vector<Extents>& parts);
  void broadcast(std::byte* data, size_t bytes, int root_host);

  // From any thread: the host's leader has said farewell.
  void mark_left(int host);

 private:
  struct Header {
    uint64_t number;
    uint64_t signature;
    uint64_t count;
  };
  // One way of a connection.
  struct Line {
    int host;
    int descriptor;
  };
  Line line(int host) const;
  Line to_next() const;
  Line from_previous() const;
  void exchange(std::byte* payload, size_t bytes);
  // `ahead`: how much more than received may be sent.
  void pump(std::byte* data, const RingPlan& plan, size_t ahead);
  size_t ahead_of_line() const;
  size_t send_some(Line line, const std::byte* data, size_t bytes);
  size_t receive_some(Line line, std::byte* data, size_t bytes);
  void check(const Header& header, int host);
  [[noreturn]] void lose(int host);
  [[noreturn]] void fail(const Failure& failure);

  // Waits until one of the wanted events is there; spins first.
  class Waiter;

  RingOptions options_;
  const int index_;
  const int size_;
  Header own_{};
  Operation operation_;
  std::vector<std::byte> scratch_;
  std::vector<std::atomic<bool>> left_;
};

}  // namespace lockstep::collective
