#include "lockstep/collective/host_group.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "lockstep/collective/mesh.h"
#include "lockstep/collective/operation.h"
#include "lockstep/collective/shared_group_layout.h"
#include "lockstep/wire/frame.h"

namespace lockstep::collective {
namespace {

// Results of shared code become exceptions here.
template <class T>
T must(Result<T> result, int rank) {
  if (!result) {
    throw CollectiveError(
        fmt::format("joining rank {}: {}", rank, result.error().to_string()),
        {rank});
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(*result);
  }
}

// A host that lost its power says nothing: ask it.
void keep_alive(os::Connection& connection) {
  const int socket = connection.descriptor();
  const auto set = [&](int level, int name, int value) {
    setsockopt(socket, level, name, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 2);
  set(IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// Large buffers from the start: the kernel's own tuning takes many round trips
// to get there. A fixed size that the system caps would be worse than none.
void widen(os::Connection& connection) {
  constexpr int kBytes = 4 << 20;
  const int socket = connection.descriptor();
  const auto set = [&](int forced, int plain, const char* limit) {
    if (setsockopt(socket, SOL_SOCKET, forced, &kBytes, sizeof kBytes) == 0) {
      return;
    }
    int most = 0;
    if (std::ifstream(limit) >> most && most >= kBytes) {
      setsockopt(socket, SOL_SOCKET, plain, &kBytes, sizeof kBytes);
    }
  };
  set(SO_SNDBUFFORCE, SO_SNDBUF, "/proc/sys/net/core/wmem_max");
  set(SO_RCVBUFFORCE, SO_RCVBUF, "/proc/sys/net/core/rmem_max");
}

std::string random_name() {
  return "@lockstep-" + to_hex(make_key()).substr(0, 24);
}

}  // namespace

HostGroup::HostGroup(const GroupOptions& options)
    : options_(options), aborted_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (options_.memory == nullptr) {
    options_.memory = Memory::create();
  }
}

HostGroup::~HostGroup() {
  // Joining may have failed half-way.
  const auto failure = shared_ ? shared_->failure() : std::nullopt;
  if (failure && watcher_) {
    spread(*failure);
  }
  // Its handlers use all that is here, itself too.
  if (watcher_) {
    watcher_->stop();
  }
}

std::shared_ptr<HostGroup> HostGroup::join(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous) {
  std::shared_ptr<HostGroup> group(new HostGroup(options));
  const os::Deadline deadline = os::Deadline::after(options.timeout);
  group->connect_local(rendezvous, deadline);
  if (group->layout_.hosts.size() > 1 && group->index_ == 0) {
    group->connect_hosts(rendezvous, deadline);
  }
  group->watcher_->start();
  return group;
}

void HostGroup::connect_local(
    wire::Rendezvous& rendezvous,
    os::Deadline deadline) {
  const os::Address own{"", 0, random_name()};
  auto listener = must(os::real_network().listen(own), options_.rank);
  const Member mine = describe_member(options_.host_identity, own.unix_path);
  const std::vector<std::string> values =
      exchange(options_, rendezvous, "member", encode(mine), deadline);
  std::vector<Member> members;
  for (const std::string& value : values) {
    members.push_back(decode_member(value));
  }
  layout_ = make_layout(members);
  const auto self = static_cast<size_t>(options_.rank);
  host_ = static_cast<size_t>(layout_.host_of[self]);
  index_ = layout_.index_of[self];
  const std::vector<int>& ranks = local_ranks();
  if (ranks.size() > kMaxRanks) {
    throw CollectiveError(
        fmt::format(
            "{} ranks on one host; the collective 'host' joins at most {}",
            ranks.size(),
            kMaxRanks));
  }

  MeshOptions mesh_options;
  mesh_options.rank = options_.rank;
  mesh_options.listener = listener.get();
  mesh_options.key = options_.key;
  mesh_options.purpose = "collective/" + options_.group + "/host";
  mesh_options.deadline = deadline;
  std::bitset<1024> processors;
  int quota = mine.cores;
  for (const int rank : ranks) {
    const Member& member = members[static_cast<size_t>(rank)];
    mesh_options.addresses[rank] = {"", 0, member.socket};
    processors |= member.processors;
    // A rank that is pinned to few processors has few cores; a quota binds
    // all of them together.
    if (static_cast<size_t>(member.cores) < member.processors.count()) {
      quota = std::min(quota, member.cores);
    } else {
      quota = std::max(quota, static_cast<int>(processors.count()));
    }
  }
  auto mesh = connect_mesh(mesh_options);

  SharedGroupOptions shared;
  shared.index = index_;
  shared.size = static_cast<int>(ranks.size());
  shared.ranks = ranks;
  spin_ = shared.size <=
          std::min(quota, std::max(1, static_cast<int>(processors.count())));
  shared.spin = spin_;
  shared.timeout = options_.timeout;
  if (layout_.hosts.size() > 1) {
    shared.extra = 2 * margin();
  }
  shared.memory = options_.memory;
  shared.others.resize(ranks.size());
  const size_t control_bytes = SharedGroup::control_bytes(shared.size);
  // The first rank of the host makes the control file. Everybody sends
  // before receiving: messages of a few bytes never fill a socket.
  os::Descriptor control;
  if (index_ == 0) {
    control = make_memory_file("lockstep-control", control_bytes);
  }
  for (auto& [rank, channels] : mesh) {
    os::Connection& peer = *channels[0];
    must(
        wire::write_frame(
            peer, std::to_string(options_.memory->reserve()), deadline),
        rank);
    must(os::send_descriptor(peer, options_.memory->descriptor()), rank);
    if (index_ == 0) {
      must(os::send_descriptor(peer, control.get()), rank);
    }
  }
  for (auto& [rank, channels] : mesh) {
    os::Connection& peer = *channels[0];
    const size_t reserve =
        std::stoull(must(wire::read_frame(peer, deadline), rank));
    const os::Descriptor memory(
        must(os::receive_descriptor(peer, deadline), rank));
    const int index = layout_.index_of[static_cast<size_t>(rank)];
    shared.others[static_cast<size_t>(index)] =
        MappedMemory(memory.get(), reserve);
    if (index == 0) {
      control =
          os::Descriptor(must(os::receive_descriptor(peer, deadline), rank));
    }
  }
  shared.control = MappedMemory(control.get(), control_bytes);
  shared.on_failure = [this](const Failure& failure) { spread(failure); };
  shared_ = std::make_unique<SharedGroup>(std::move(shared));

  watcher_ = std::make_unique<Watcher>(Watcher::Handlers{
      .gone =
          [this](int rank) {
            abort({fmt::format("rank {} is gone", rank), {rank}});
          },
      .left =
          [this](int rank) {
            const auto at = static_cast<size_t>(rank);
            if (layout_.host_of[at] == static_cast<int>(host_)) {
              shared_->mark_left(layout_.index_of[at]);
            } else if (ring_ != nullptr) {
              ring_->mark_left(layout_.host_of[at]);
            }
          },
      .abort = [this](const Failure& failure) { abort(failure); }});
  for (auto& [rank, channels] : mesh) {
    watcher_->add(rank, std::move(channels[0]));
  }
}

void HostGroup::abort(const Failure& failure) {
  shared_->abort(failure);
  spread(shared_->failure().value_or(failure));
}

// Every rank passes a failure on once: the ranks of a host see it in their
// memory at once, but only the first of them can tell the other hosts.
void HostGroup::spread(const Failure& failure) {
  // Under a lock: nobody may say farewell before the reason is sent.
  const std::lock_guard lock(spreading_);
  if (!std::exchange(spread_, true)) {
    eventfd_write(aborted_.get(), 1);
    watcher_->send_abort(failure);
  }
}

Duration HostGroup::margin() const {
  return std::clamp<Duration>(
      options_.timeout / 10,
      std::chrono::milliseconds(50),
      std::chrono::seconds(1));
}

void HostGroup::connect_hosts(
    wire::Rendezvous& rendezvous,
    os::Deadline deadline) {
  const std::string own = options_.advertise_host.empty()
                              ? find_own_address()
                              : options_.advertise_host;
  auto listener = must(os::real_network().listen({own, 0, ""}), options_.rank);
  std::vector<int> leaders;
  for (const std::vector<int>& host : layout_.hosts) {
    leaders.push_back(host.front());
  }
  const std::vector<std::string> addresses = exchange(
      options_,
      rendezvous,
      "address",
      listener->address().to_string(),
      deadline,
      leaders);
  MeshOptions mesh_options;
  mesh_options.rank = options_.rank;
  mesh_options.listener = listener.get();
  mesh_options.key = options_.key;
  mesh_options.purpose = "collective/" + options_.group + "/ring";
  mesh_options.channels = leaders.size() == 2 ? 3 : 2;
  mesh_options.deadline = deadline;
  for (const int rank : leaders) {
    mesh_options.addresses[rank] =
        must(os::parse_address(addresses[static_cast<size_t>(rank)]), rank);
  }
  auto mesh = connect_mesh(mesh_options);
  RingOptions ring;
  ring.index = static_cast<int>(host_);
  ring.ranks = layout_.hosts;
  ring.peers.resize(layout_.hosts.size());
  ring.timeout = options_.timeout + margin();
  ring.spin = spin_;
  ring.aborted = aborted_.get();
  ring.idle = [this] { shared_->progress(); };
  ring.fail = [this](const Failure& failure) {
    abort(failure);
    return shared_->failure().value_or(failure);
  };
  for (auto& [rank, channels] : mesh) {
    const auto host =
        static_cast<size_t>(layout_.host_of[static_cast<size_t>(rank)]);
    keep_alive(*channels[0]);
    widen(*channels[1]);
    watcher_->add(rank, std::move(channels[0]));
    ring.peers[host] = std::move(channels[1]);
    if (channels.size() > 2) {
      widen(*channels[2]);
      ring.back = std::move(channels[2]);
    }
  }
  ring_ = std::make_unique<Ring>(std::move(ring));
}

}  // namespace lockstep::collective
