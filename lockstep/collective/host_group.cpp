#include "lockstep/collective/host_group.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/collective/mesh.h"
#include "lockstep/collective/operation.h"
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

std::string random_name() {
  return "@lockstep-" + to_hex(make_key()).substr(0, 24);
}

}  // namespace

HostGroup::HostGroup(const GroupOptions& options) : options_(options) {
  if (options_.memory == nullptr) {
    options_.memory = Memory::create();
  }
}

HostGroup::~HostGroup() {
  watcher_.reset();
}

std::shared_ptr<HostGroup> HostGroup::join(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous) {
  std::shared_ptr<HostGroup> group(new HostGroup(options));
  group->connect_local(rendezvous, os::Deadline::after(options.timeout));
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
  shared.spin =
      shared.size <=
      std::min(quota, std::max(1, static_cast<int>(processors.count())));
  shared.timeout = options_.timeout;
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
  shared.on_failure = [this](const Failure& failure) {
    watcher_->send_abort(failure);
  };
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
            }
          },
      .abort = [this](const Failure& failure) { abort(failure); }});
  for (auto& [rank, channels] : mesh) {
    watcher_->add(rank, std::move(channels[0]));
  }
}

void HostGroup::abort(const Failure& failure) {
  if (shared_->failed()) {
    return;
  }
  shared_->abort(failure);
  watcher_->send_abort(failure);
}

}  // namespace lockstep::collective
