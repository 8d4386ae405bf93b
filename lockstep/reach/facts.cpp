#include "lockstep/reach/facts.h"

#include <arpa/inet.h>
#include <gnu/libc-version.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pwd.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "lockstep/base/log.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/host.h"
#include "lockstep/os/process.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;

std::string user_name() {
  const passwd* entry = ::getpwuid(::getuid());
  return entry == nullptr ? std::to_string(::getuid()) : entry->pw_name;
}

// 0 when it is not there.
uint64_t shared_memory_size() {
  struct statvfs facts{};
  if (::access("/dev/shm", W_OK) != 0 || ::statvfs("/dev/shm", &facts) != 0) {
    return 0;
  }
  return static_cast<uint64_t>(facts.f_blocks) * facts.f_frsize;
}

os::Path own_file() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

// Text of the environment need not be UTF-8, which JSON must be.
bool is_text(const std::string& value) {
  return !json(value)
              .dump(-1, ' ', false, json::error_handler_t::ignore)
              .empty() &&
         json::parse(
             json(value).dump(-1, ' ', false, json::error_handler_t::ignore),
             nullptr,
             false)
                 .get<std::string>() == value;
}

json environment_of_ours() {
  json all = json::object();
  for (const auto& [name, value] : os::environment()) {
    if (is_text(name) && is_text(value)) {
      all[name] = value;
    }
  }
  return all;
}

}  // namespace

std::vector<std::string> own_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    return {};
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, ::freeifaddrs);
  std::vector<std::string> four;
  std::vector<std::string> six;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0 ||
        (one->ifa_flags & IFF_LOOPBACK) != 0) {
      continue;
    }
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (one->ifa_addr->sa_family == AF_INET) {
      const auto* address = reinterpret_cast<const sockaddr_in*>(one->ifa_addr);
      ::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
      if (!std::string_view(text.data()).starts_with("169.254.")) {
        four.emplace_back(text.data());
      }
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      const auto* address =
          reinterpret_cast<const sockaddr_in6*>(one->ifa_addr);
      if (IN6_IS_ADDR_LINKLOCAL(&address->sin6_addr) == 0) {
        ::inet_ntop(AF_INET6, &address->sin6_addr, text.data(), text.size());
        six.emplace_back(text.data());
      }
    }
  }
  four.insert(four.end(), six.begin(), six.end());
  return four;
}

json machine_facts(const os::Path& home) {
  const os::HostFacts host = os::host_facts();
  utsname names{};
  ::uname(&names);
  json gpus = json::array();
  for (const os::Gpu& gpu : host.gpus) {
    gpus.push_back({{"name", gpu.name}, {"memory", gpu.memory.count}});
  }
  const char* folder = std::getenv("HOME");
  const auto space = os::real_files().free_space(home);
  return {
      {"hostname", host.hostname},
      {"user", user_name()},
      {"home", folder == nullptr ? "" : folder},
      {"lockstep_home", home.string()},
      {"program", own_file().string()},
      {"version", version()},
      {"architecture", names.machine},
      {"kernel", names.release},
      {"libc", ::gnu_get_libc_version()},
      {"os", host.os_name},
      {"cpu", host.cpu_model},
      {"cores", host.cores},
      {"memory", host.memory.count},
      {"gpus", gpus},
      {"addresses", own_addresses()},
      {"time", os::real_clock().unix_seconds()},
      {"free", space ? space->count : 0},
      {"shm", shared_memory_size()},
      {"environment", environment_of_ours()}};
}

}  // namespace lockstep::reach
