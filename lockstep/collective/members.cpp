#include "lockstep/collective/members.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "lockstep/collective/operation.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/host.h"

namespace lockstep::collective {
namespace {

std::string name_this_host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char space[64] = {};
  const ssize_t size = readlink("/proc/self/ns/net", space, sizeof space - 1);
  return fmt::format(
      "{}/{}/{}",
      name,
      boot,
      std::string(space, static_cast<size_t>(std::max<ssize_t>(size, 0))));
}

std::string numeric(const sockaddr* address) {
  char host[NI_MAXHOST] = {};
  const socklen_t size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6)
                                                        : sizeof(sockaddr_in);
  const int code =
      getnameinfo(address, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST);
  return code == 0 ? host : "";
}

// An address of the named interface, or of any but loopback when empty.
std::string interface_address(const std::string& name) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return "";
  }
  std::string found;
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_addr->sa_family != AF_INET ||
        (at->ifa_flags & IFF_UP) == 0) {
      continue;
    }
    const bool wanted = name.empty() ? (at->ifa_flags & IFF_LOOPBACK) == 0
                                     : name == at->ifa_name;
    if (wanted) {
      found = numeric(at->ifa_addr);
      break;
    }
  }
  freeifaddrs(list);
  return found;
}

// Which of our addresses the system would use to reach `host`: a datagram
// socket is connected, nothing is sent.
std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &list) != 0) {
    return "";
  }
  std::string found;
  for (const addrinfo* at = list; at != nullptr && found.empty();
       at = at->ai_next) {
    const os::Descriptor socket(
        ::socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (socket && connect(socket.get(), at->ai_addr, at->ai_addrlen) == 0 &&
        getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) ==
            0) {
      found = numeric(reinterpret_cast<sockaddr*>(&own));
    }
  }
  freeaddrinfo(list);
  return found;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Member describe_member(const std::string& identity, const std::string& socket) {
  Member member;
  member.host = identity.empty() ? name_this_host() : identity;
  member.socket = socket;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    for (size_t i = 0; i < member.processors.size() && i < CPU_SETSIZE; ++i) {
      member.processors[i] = CPU_ISSET(i, &set);
    }
  }
  member.cores = os::host_facts().cores;
  return member;
}

std::vector<std::string> exchange(
    const GroupOptions& options,
    wire::Rendezvous& rendezvous,
    const std::string& name,
    const std::string& value,
    os::Deadline deadline,
    const std::vector<int>& ranks) {
  const auto key = [&](int rank) {
    return fmt::format("collective/{}/{}/{}", options.group, name, rank);
  };
  if (auto put = rendezvous.put(key(options.rank), value); !put) {
    throw CollectiveError("joining the group: " + put.error().to_string());
  }
  std::vector<int> wanted = ranks;
  if (wanted.empty()) {
    for (int rank = 0; rank < options.world_size; ++rank) {
      wanted.push_back(rank);
    }
  }
  std::vector<std::string> values(static_cast<size_t>(options.world_size));
  std::vector<int> missing;
  for (const int rank : wanted) {
    auto got = rendezvous.get(key(rank), deadline);
    if (got) {
      values[static_cast<size_t>(rank)] = std::move(*got);
    } else if (got.error().code() == ErrorCode::kTimeout) {
      missing.push_back(rank);
    } else {
      throw CollectiveError("joining the group: " + got.error().to_string());
    }
  }
  if (!missing.empty()) {
    throw CollectiveError(
        fmt::format(
            "joining the group: {} of {} did not come within {}",
            name_ranks(missing),
            options.world_size,
            format_duration(options.timeout)),
        missing);
  }
  return values;
}

std::string encode(const Member& member) {
  return fmt::format(
      "{}\n{}\n{}\n{}",
      member.host,
      member.socket,
      member.processors.to_string(),
      member.cores);
}

Member decode_member(const std::string& text) {
  std::istringstream lines(text);
  Member member;
  std::string processors;
  std::string cores;
  if (!std::getline(lines, member.host) ||
      !std::getline(lines, member.socket) || !std::getline(lines, processors) ||
      !std::getline(lines, cores) ||
      processors.size() != member.processors.size() ||
      processors.find_first_not_of("01") != std::string::npos) {
    throw CollectiveError("joining the group: a rank published garbage");
  }
  member.processors = std::bitset<1024>(processors);
  member.cores = std::max(1, std::atoi(cores.c_str()));
  return member;
}

Layout make_layout(const std::vector<Member>& members) {
  Layout layout;
  std::map<std::string, size_t> known;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    const auto [it, fresh] =
        known.emplace(members[rank].host, layout.hosts.size());
    if (fresh) {
      layout.hosts.emplace_back();
    }
    std::vector<int>& host = layout.hosts[it->second];
    layout.host_of.push_back(static_cast<int>(it->second));
    layout.index_of.push_back(static_cast<int>(host.size()));
    host.push_back(static_cast<int>(rank));
  }
  return layout;
}

std::string find_own_address() {
  const std::string interface = variable("GLOO_SOCKET_IFNAME");
  if (!interface.empty()) {
    const std::string found = interface_address(interface);
    if (!found.empty()) {
      return found;
    }
  }
  for (const char* name : {"LOCKSTEP_COORDINATOR", "MASTER_ADDR"}) {
    const auto address = os::parse_address(variable(name));
    std::string host = address ? address->host : variable(name);
    if (host.empty()) {
      continue;
    }
    const std::string found = address_towards(host);
    if (!found.empty()) {
      return found;
    }
  }
  const std::string found = interface_address("");
  return found.empty() ? "127.0.0.1" : found;
}

}  // namespace lockstep::collective
