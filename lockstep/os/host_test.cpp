#include "lockstep/os/host.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/os/nvml.h"

namespace lockstep::os {
namespace {

// A machine made of files.
class MadeHost : public ::testing::Test {
 protected:
  MadeHost() {
    std::string name = ::testing::TempDir() + "lockstep-XXXXXX";
    root_ = ::mkdtemp(name.data());
    put("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\n");
  }
  ~MadeHost() override { std::filesystem::remove_all(root_); }
  void put(const Path& path, const std::string& content) {
    Path whole = root_ / path;
    ASSERT_TRUE(real_files().make_directories(whole.parent_path()));
    ASSERT_TRUE(real_files().write_atomic(whole, content));
  }
  Path root_;
};

TEST_F(MadeHost, WithoutLimitsHasEverything) {
  EXPECT_EQ(usable_cores(root_, 8), 8);
  EXPECT_EQ(usable_memory(root_).count, 1024000U);
}

TEST_F(MadeHost, CountsUnifiedGroupsUpToTheRoot) {
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  put("sys/fs/cgroup/a/cpu.max", "150000 100000\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/memory.max", "4096\n");
  EXPECT_EQ(usable_cores(root_, 8), 2) << "one and a half, rounded up";
  EXPECT_EQ(usable_cores(root_, 1), 1) << "affinity is tighter";
  EXPECT_EQ(usable_memory(root_).count, 4096U);
}

TEST_F(MadeHost, CountsOldGroups) {
  put("proc/self/cgroup", "5:cpu,cpuacct:/job\n3:memory:/job\n0::/\n");
  put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "25000\n");
  put("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2048\n");
  EXPECT_EQ(usable_cores(root_, 8), 1);
  EXPECT_EQ(usable_memory(root_).count, 2048U);
}

TEST_F(MadeHost, WhatIsLeftIsTheLeastOfMachineAndGroups) {
  put("proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 700 kB\n");
  EXPECT_EQ(available_memory(root_).count, 716800U);
  put("proc/self/cgroup", "0::/a/b\n");
  put("sys/fs/cgroup/a/b/memory.max", "max\n");
  put("sys/fs/cgroup/a/b/memory.current", "90000\n");
  EXPECT_EQ(available_memory(root_).count, 716800U);
  put("sys/fs/cgroup/a/memory.max", "100000\n");
  put("sys/fs/cgroup/a/memory.current", "95000\n");
  put("sys/fs/cgroup/a/memory.stat", "anon 60000\ninactive_file 20000\n");
  EXPECT_EQ(available_memory(root_).count, 25000U)
      << "files that can be dropped count as free";
  put("sys/fs/cgroup/a/memory.current", "990000\n");
  EXPECT_EQ(available_memory(root_).count, 0U);
}

TEST_F(MadeHost, OldGroupsWithoutLimit) {
  put("proc/self/cgroup", "5:cpu:/job\n3:memory:/job\n");
  put("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n");
  put("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/memory/job/memory.limit_in_bytes",
      "9223372036854771712\n");
  EXPECT_EQ(usable_cores(root_, 8), 8);
  EXPECT_EQ(usable_memory(root_).count, 1024000U);
}

// In a container the path of the group is not mounted, its root is.
TEST_F(MadeHost, ContainerSeesTheMountedRoot) {
  put("proc/self/cgroup", "5:cpu:/docker/0123\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(usable_cores(root_, 8), 3);
}

TEST(Host, ThisOneHasFacts) {
  HostFacts facts = host_facts();
  EXPECT_FALSE(facts.hostname.empty());
  EXPECT_FALSE(facts.os_name.empty());
  EXPECT_EQ(facts.os_name.find('"'), std::string::npos);
  EXPECT_GE(facts.cores, 1);
  EXPECT_GT(facts.memory.count, uint64_t{1} << 20);
}

TEST(Host, UseGrowsWithWork) {
  ResourceUse before = resource_use();
  EXPECT_GT(before.resident.count, 0U);
  EXPECT_GE(before.peak_resident.count, uint64_t{1} << 16);
  volatile double sink = 0;
  ResourceUse after = before;
  for (int round = 0; round < 10000 && after.cpu_seconds <= before.cpu_seconds;
       ++round) {
    for (int i = 0; i < 100000; ++i) {
      sink = sink + i;
    }
    after = resource_use();
  }
  EXPECT_GT(after.cpu_seconds, before.cpu_seconds);
}

TEST(Gpus, AddressesAreOneHoweverTheyAreWritten) {
  EXPECT_TRUE(is_same_gpu("0000:1b:00.0", "00000000:1B:00.0"));
  EXPECT_TRUE(is_same_gpu("0001:00:02.0", "00000001:00:02.0"));
  EXPECT_FALSE(is_same_gpu("0000:1b:00.0", "00000000:1C:00.0"));
  EXPECT_FALSE(is_same_gpu("0001:1b:00.0", "00000000:1B:00.0"));
  EXPECT_FALSE(is_same_gpu("", ""));
}

}  // namespace
}  // namespace lockstep::os
