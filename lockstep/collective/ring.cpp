#include "lockstep/collective/ring.h"

#include <fmt/format.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lockstep/collective/kernels.h"
#include "lockstep/collective/ticks.h"

namespace lockstep::collective {
namespace {

constexpr size_t kDirectBytes = 64 << 10;  // sent by a host in all
constexpr size_t kSegment = 512 << 10;     // of one system call
constexpr size_t kAhead = 256 << 10;       // sent before as much has come
constexpr size_t kFastestLine = 12'500;    // bytes in a microsecond: 100 Gbit/s
constexpr size_t kAnywhere = SIZE_MAX;
constexpr double kSpinSeconds = 50e-6;
constexpr Duration kReasonPatience = std::chrono::milliseconds(50);

}  // namespace

// Patience of one call: spins, then polls until the deadline.
class Ring::Waiter {
 public:
  explicit Waiter(Ring& ring)
      : ring_(ring), deadline_(os::Deadline::after(ring.options_.timeout)) {}

  void progressed() { spinning_since_ = 0; }

  // `missing` names the hosts that are waited for when time is up.
  template <class Missing>
  void wait(std::vector<pollfd>& set, const Missing& missing) {
    ring_.options_.idle();
    if (ring_.options_.spin) {
      const uint64_t now = ticks();
      if (spinning_since_ == 0) {
        spinning_since_ = now;
      }
      if (static_cast<double>(now - spinning_since_) * tick_ < kSpinSeconds) {
        return;
      }
    }
    set.push_back({ring_.options_.aborted, POLLIN, 0});
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::min<Duration>(deadline_.left(), std::chrono::milliseconds(20)));
    const int ready =
        poll(set.data(), set.size(), static_cast<int>(left.count()));
    if (set.back().revents != 0) {
      ring_.fail({"the group was aborted", {}});
    }
    if (ready > 0) {
      return;
    }
    for (const int host : missing()) {
      if (ring_.left_[static_cast<size_t>(host)].load()) {
        ring_.lose(host);
      }
    }
    if (deadline_.passed()) {
      std::vector<int> ranks;
      for (const int host : missing()) {
        const auto& of_host = ring_.options_.ranks[static_cast<size_t>(host)];
        ranks.insert(ranks.end(), of_host.begin(), of_host.end());
      }
      std::ranges::sort(ranks);
      ring_.fail(
          {fmt::format(
               "{} (operation {}): no word from {} after {}",
               describe(ring_.operation_),
               ring_.own_.number,
               name_ranks(ranks),
               format_duration(ring_.options_.timeout)),
           ranks});
    }
  }

 private:
  Ring& ring_;
  os::Deadline deadline_;
  uint64_t spinning_since_ = 0;
  const double tick_ = seconds_per_tick();
};

Ring::Ring(RingOptions options)
    : options_(std::move(options)),
      index_(options_.index),
      size_(static_cast<int>(options_.ranks.size())),
      left_(options_.ranks.size()) {}

void Ring::mark_left(int host) {
  left_[static_cast<size_t>(host)].store(true);
}

void Ring::fail(const Failure& failure) {
  const Failure first = options_.fail(failure);
  throw CollectiveError(first.reason, first.ranks);
}

// The stream of a peer has ended. The watcher knows better why: let it speak.
void Ring::lose(int host) {
  pollfd set = {options_.aborted, POLLIN, 0};
  poll(
      &set,
      1,
      static_cast<int>(std::chrono::milliseconds(
                           kReasonPatience / std::chrono::milliseconds(1))
                           .count()));
  const int rank = options_.ranks[static_cast<size_t>(host)].front();
  fail({fmt::format("rank {} has left the group", rank), {rank}});
}

Ring::Line Ring::line(int host) const {
  return {host, options_.peers[static_cast<size_t>(host)]->descriptor()};
}

Ring::Line Ring::to_next() const {
  const int next = (index_ + 1) % size_;
  return options_.back != nullptr && next == 0
             ? Line{next, options_.back->descriptor()}
             : line(next);
}

Ring::Line Ring::from_previous() const {
  const int previous = (index_ + size_ - 1) % size_;
  return options_.back != nullptr && index_ == 0
             ? Line{previous, options_.back->descriptor()}
             : line(previous);
}

size_t Ring::send_some(Line line, const std::byte* data, size_t bytes) {
  const ssize_t sent =
      ::send(line.descriptor, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) {
    return static_cast<size_t>(sent);
  }
  if (errno == EAGAIN || errno == EINTR) {
    return 0;
  }
  lose(line.host);
}

size_t Ring::receive_some(Line line, std::byte* data, size_t bytes) {
  const ssize_t received = ::recv(line.descriptor, data, bytes, MSG_DONTWAIT);
  if (received > 0) {
    return static_cast<size_t>(received);
  }
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) {
    return 0;
  }
  lose(line.host);
}

void Ring::check(const Header& header, int host) {
  if (header.number == own_.number && header.signature == own_.signature &&
      header.count == own_.count) {
    return;
  }
  fail(
      {fmt::format(
           "ranks disagree on operation {}: rank {} called {}, rank {} "
           "called {}",
           own_.number,
           options_.ranks[static_cast<size_t>(index_)].front(),
           describe(own_.signature, own_.count),
           options_.ranks[static_cast<size_t>(host)].front(),
           describe(header.signature, header.count)),
       {}});
}

// Sends a header and `bytes` to every other host and receives the same from
// each into scratch_, one after the other.
void Ring::exchange(std::byte* payload, size_t bytes) {
  const size_t stride = sizeof(Header) + bytes;
  const auto num = static_cast<size_t>(size_);
  scratch_.resize(std::max(scratch_.size(), stride * (num + 1)));
  std::byte* message = scratch_.data() + stride * num;
  std::memcpy(message, &own_, sizeof own_);
  if (bytes > 0) {
    std::memcpy(message + sizeof own_, payload, bytes);
  }
  std::vector<size_t> sent(num, 0);
  std::vector<size_t> received(num, 0);
  sent[static_cast<size_t>(index_)] = stride;
  received[static_cast<size_t>(index_)] = stride;
  Waiter waiter(*this);
  for (;;) {
    bool moved = false;
    bool all = true;
    std::vector<pollfd> set;
    for (int host = 0; host < size_; ++host) {
      const auto i = static_cast<size_t>(host);
      if (sent[i] < stride) {
        const size_t now =
            send_some(line(host), message + sent[i], stride - sent[i]);
        sent[i] += now;
        moved = moved || now > 0;
      }
      if (received[i] < stride) {
        const size_t now = receive_some(
            line(host),
            scratch_.data() + stride * i + received[i],
            stride - received[i]);
        moved = moved || now > 0;
        if (received[i] < sizeof(Header) &&
            received[i] + now >= sizeof(Header)) {
          Header header;
          std::memcpy(&header, scratch_.data() + stride * i, sizeof header);
          check(header, host);
        }
        received[i] += now;
      }
      all = all && sent[i] == stride && received[i] == stride;
    }
    if (all) {
      return;
    }
    if (moved) {
      waiter.progressed();
      continue;
    }
    for (int host = 0; host < size_; ++host) {
      const auto i = static_cast<size_t>(host);
      const auto events = static_cast<short>(
          (sent[i] < stride ? POLLOUT : 0) |
          (received[i] < stride ? POLLIN : 0));
      if (events != 0) {
        set.push_back({line(host).descriptor, events, 0});
      }
    }
    waiter.wait(set, [&] {
      std::vector<int> missing;
      for (int host = 0; host < size_; ++host) {
        if (received[static_cast<size_t>(host)] < stride) {
          missing.push_back(host);
        }
      }
      return missing;
    });
  }
}

void Ring::meet(const Operation& operation) {
  operation_ = operation;
  own_ = {own_.number + 1, operation.signature(), operation.count};
  exchange(nullptr, 0);
}

size_t Ring::direct_bytes(int num_hosts) {
  return kDirectBytes / static_cast<size_t>(num_hosts - 1);
}

void Ring::meet_and_reduce(const Operation& operation, std::byte* data) {
  operation_ = operation;
  own_ = {own_.number + 1, operation.signature(), operation.count};
  const size_t bytes = operation.count * size_of(operation.type);
  exchange(data, bytes);
  if (bytes == 0) {
    return;
  }
  std::vector<std::byte> aligned;
  std::vector<void*> inputs;
  // Headers are 24 bytes and data may have any length: align by copying.
  const size_t room = (bytes + 63) / 64 * 64;
  aligned.resize(room * static_cast<size_t>(size_) + 64);
  auto* base = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(aligned.data()) + 63) / 64 * 64);
  for (int host = 0; host < size_; ++host) {
    const auto i = static_cast<size_t>(host);
    std::byte* at = base + room * i;
    std::memcpy(
        at,
        host == index_
            ? data
            : scratch_.data() + (sizeof(Header) + bytes) * i + sizeof(Header),
        bytes);
    inputs.push_back(at);
  }
  void* output = inputs[0];
  reduce(
      inputs.data(),
      size_,
      &output,
      1,
      operation.count,
      operation.type,
      operation.op);
  std::memcpy(data, output, bytes);
}

// What is on its way waits in memory: more of it than the line itself holds
// only leaves the caches before it is read. Between hosts of one machine that
// is a third of the speed.
size_t Ring::ahead_of_line() const {
  tcp_info facts{};
  socklen_t size = sizeof facts;
  if (getsockopt(to_next().descriptor, IPPROTO_TCP, TCP_INFO, &facts, &size) !=
      0) {
    return kAnywhere;
  }
  // The kernel says UINT32_MAX before it has seen any.
  return kAhead + size_t{facts.tcpi_min_rtt} * kFastestLine;
}

void Ring::pump(std::byte* data, const RingPlan& plan, size_t ahead) {
  const Line next = to_next();
  const Line previous = from_previous();
  const size_t element = size_of(plan.type);
  scratch_.resize(std::max(scratch_.size(), kSegment + 64));
  auto* buffer = reinterpret_cast<std::byte*>(
      (reinterpret_cast<uintptr_t>(scratch_.data()) + 63) / 64 * 64);
  buffer = buffer + kSegment > scratch_.data() + scratch_.size()
               ? scratch_.data()
               : buffer;
  size_t sending = 0;    // step
  size_t sent = 0;       // bytes of it
  size_t receiving = 0;  // step
  size_t received = 0;   // bytes of it, reduced where they must be
  size_t held = 0;       // bytes in the buffer, less than an element
  size_t all_sent = 0;
  size_t all_received = 0;
  Waiter waiter(*this);
  for (;;) {
    bool moved = false;
    while (sending < plan.sends.size() && sent == plan.sends[sending].bytes) {
      ++sending;
      sent = 0;
    }
    while (receiving < plan.receives.size() &&
           received == plan.receives[receiving].bytes) {
      ++receiving;
      received = 0;
    }
    if (sending == plan.sends.size() && receiving == plan.receives.size()) {
      return;
    }
    size_t allowed = 0;
    if (sending < plan.sends.size()) {
      const RingPlan::Step& step = plan.sends[sending];
      const size_t end = step.fresh || receiving > step.after ? step.bytes
                         : receiving == step.after            ? received
                                                              : 0;
      allowed = end > sent ? end - sent : 0;
      const size_t lead = all_sent - std::min(all_sent, all_received);
      if (receiving < plan.receives.size()) {
        allowed = std::min(allowed, ahead - std::min(ahead, lead));
      }
      if (allowed > 0) {
        const Extent piece = at_position(step.extents, sent);
        const size_t now = send_some(
            next,
            data + piece.offset,
            std::min({allowed, piece.bytes, kSegment}));
        sent += now;
        all_sent += now;
        moved = now > 0;
      }
    }
    if (receiving < plan.receives.size()) {
      const RingPlan::Step& step = plan.receives[receiving];
      const Extent piece = at_position(step.extents, received);
      if (!step.reduce) {
        const size_t now = receive_some(
            previous, data + piece.offset, std::min(piece.bytes, kSegment));
        received += now;
        all_received += now;
        moved = moved || now > 0;
      } else {
        const size_t most = std::min(piece.bytes, kSegment) - held;
        const size_t now = receive_some(previous, buffer + held, most);
        if (now > 0) {
          moved = true;
          const size_t whole = (held + now) / element;
          std::byte* own = data + piece.offset;
          // In the order of the ring: what came first, then ours.
          const void* inputs[] = {buffer, own};
          void* output = own;
          reduce(inputs, 2, &output, 1, whole, plan.type, plan.op);
          held = held + now - whole * element;
          std::memmove(buffer, buffer + whole * element, held);
          received += whole * element;
          all_received += whole * element;
        }
      }
    }
    if (moved) {
      waiter.progressed();
      continue;
    }
    std::vector<pollfd> set;
    if (allowed > 0) {
      set.push_back({next.descriptor, POLLOUT, 0});
    }
    if (receiving < plan.receives.size()) {
      set.push_back({previous.descriptor, POLLIN, 0});
    }
    waiter.wait(set, [&] {
      return std::vector<int>{
          receiving < plan.receives.size() ? previous.host : next.host};
    });
  }
}

void Ring::all_reduce(
    std::byte* data,
    size_t count,
    DataType type,
    ReduceOp op) {
  // All hosts send as much as they receive, block by block: nobody who has sent
  // too much waits for one who has, too.
  pump(
      data, plan_all_reduce({index_, size_}, count, type, op), ahead_of_line());
}

void Ring::reduce_scatter(
    std::byte* data,
    const std::vector<Extents>& parts,
    DataType type,
    ReduceOp op) {
  pump(data, plan_reduce_scatter({index_, size_}, parts, type, op), kAnywhere);
}

void Ring::all_gather(std::byte* data, const std::vector<Extents>& parts) {
  pump(data, plan_all_gather({index_, size_}, parts), kAnywhere);
}

void Ring::broadcast(std::byte* data, size_t bytes, int root_host) {
  pump(data, plan_broadcast({index_, size_}, bytes, root_host), kAnywhere);
}

}  // namespace lockstep::collective
