#include "lockstep/os/host.h"

#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>

#include "lockstep/os/nvml.h"

namespace lockstep::os {
namespace {

std::string read_or_empty(const Path& path) {
  auto content = real_files().read(path);
  return content ? *content : std::string();
}

// "key : value" or "key=value" of the first line that starts with `key`.
std::string value_of(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    size_t split = line.find_first_of(":=");
    if (!line.starts_with(key) || split == std::string::npos) {
      continue;
    }
    size_t start = line.find_first_not_of(" \t\"", split + 1);
    size_t end = line.find_last_not_of(" \t\"");
    return start == std::string::npos || end < start
               ? std::string()
               : line.substr(start, end - start + 1);
  }
  return {};
}

std::optional<double> number_in(const std::string& text) {
  std::istringstream stream(text);
  double value = 0;
  if (stream >> value) {
    return value;
  }
  return {};
}

// "name number" of a line of memory.stat; 0 where it is not there.
double stat_number(const std::string& text, const std::string& name) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + " ")) {
      return number_in(line.substr(name.size())).value_or(0);
    }
  }
  return 0;
}

// The folders that limit this process: its own group and all above it, for
// the unified hierarchy and for one controller of the old kind. In a container
// the path in /proc may lie outside of what is mounted; the root is tried too.
std::vector<Path> group_folders(
    const Path& root,
    const std::string& controller) {
  std::vector<Path> folders;
  std::istringstream lines(read_or_empty(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    size_t first = line.find(':');
    size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    std::string controllers = line.substr(first + 1, second - first - 1);
    Path group = Path(line.substr(second + 1)).relative_path();
    std::vector<Path> mounts;
    if (controllers.empty()) {
      mounts = {root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified"};
    } else if (
        ("," + controllers + ",").find("," + controller + ",") !=
        std::string::npos) {
      mounts = {
          root / "sys/fs/cgroup" / controller,
          root / "sys/fs/cgroup" / controllers};
    }
    for (const Path& mount : mounts) {
      for (Path at = group; !at.empty(); at = at.parent_path()) {
        folders.push_back(mount / at);
      }
      folders.push_back(mount);
    }
  }
  return folders;
}

// Cores by quota: cpu.max is "QUOTA PERIOD" or "max PERIOD"; the old files
// hold -1 for no limit.
std::optional<double> core_quota(const Path& folder) {
  double quota = 0;
  double period = 0;
  std::istringstream unified(read_or_empty(folder / "cpu.max"));
  if (!(unified >> quota >> period)) {
    auto old_quota = number_in(read_or_empty(folder / "cpu.cfs_quota_us"));
    auto old_period = number_in(read_or_empty(folder / "cpu.cfs_period_us"));
    quota = old_quota.value_or(0);
    period = old_period.value_or(0);
  }
  if (quota > 0 && period > 0) {
    return quota / period;
  }
  return {};
}

int affinity_cores() {
  // Grows until the kernel's mask fits: big machines have over 1024.
  for (int size = 1024; size <= 1 << 20; size *= 4) {
    cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(size));
    size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    int count =
        ::sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (count > 0) {
      return count;
    }
  }
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

double seconds_of(const timeval& value) {
  return static_cast<double>(value.tv_sec) +
         static_cast<double>(value.tv_usec) * 1e-6;
}

}  // namespace

int usable_cores(const Path& root, int affinity) {
  double cores = affinity;
  for (const Path& folder : group_folders(root, "cpu")) {
    cores = std::min(cores, core_quota(folder).value_or(cores));
  }
  return std::max(1, static_cast<int>(std::ceil(cores)));
}

Bytes usable_memory(const Path& root) {
  double limit =
      number_in(value_of(read_or_empty(root / "proc/meminfo"), "MemTotal"))
          .value_or(0) *
      1024;
  for (const Path& folder : group_folders(root, "memory")) {
    for (const char* name : {"memory.max", "memory.limit_in_bytes"}) {
      auto bytes = number_in(read_or_empty(folder / name));
      if (bytes && *bytes > 0) {
        limit = limit > 0 ? std::min(limit, *bytes) : *bytes;
      }
    }
  }
  return Bytes{static_cast<uint64_t>(limit)};
}

Bytes available_memory(const Path& root) {
  double left =
      number_in(value_of(read_or_empty(root / "proc/meminfo"), "MemAvailable"))
          .value_or(0) *
      1024;
  const std::pair<const char*, const char*> kinds[] = {
      {"memory.max", "memory.current"},
      {"memory.limit_in_bytes", "memory.usage_in_bytes"}};
  for (const Path& folder : group_folders(root, "memory")) {
    // The kernel drops clean pages of files before it ends a process.
    const std::string stat = read_or_empty(folder / "memory.stat");
    for (const auto& [limit_name, use_name] : kinds) {
      const auto limit = number_in(read_or_empty(folder / limit_name));
      const auto use = number_in(read_or_empty(folder / use_name));
      if (limit && use && *limit > 0) {
        const double files = stat_number(stat, "inactive_file");
        left = std::min(left, std::max(0., *limit - *use + files));
      }
    }
  }
  return Bytes{static_cast<uint64_t>(left)};
}

HostFacts host_facts() {
  HostFacts facts;
  char name[256] = "";
  if (::gethostname(name, sizeof(name) - 1) == 0) {
    facts.hostname = name;
  }
  facts.cpu_model = value_of(read_or_empty("/proc/cpuinfo"), "model name");
  facts.os_name = value_of(read_or_empty("/etc/os-release"), "PRETTY_NAME");
  facts.cores = usable_cores("/", affinity_cores());
  facts.memory = usable_memory("/");
  for (const GpuLook& gpu : look_at_gpus()) {
    facts.gpus.push_back(Gpu{.name = gpu.name, .memory = gpu.memory});
  }
  return facts;
}

ResourceUse resource_use() {
  ResourceUse use;
  std::istringstream pages(read_or_empty("/proc/self/statm"));
  uint64_t total = 0;
  uint64_t resident = 0;
  if (pages >> total >> resident) {
    use.resident =
        Bytes{resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE))};
  }
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    use.peak_resident = Bytes{static_cast<uint64_t>(usage.ru_maxrss) * 1024};
    use.cpu_seconds = seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
  }
  for (const GpuLook& gpu : look_at_gpus()) {
    use.gpu_use.push_back(gpu.use);
    use.gpu_memory.push_back(gpu.memory_used);
  }
  return use;
}

}  // namespace lockstep::os
