#include "lockstep/fetch/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>

namespace lockstep::fetch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Registry : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/lockstep-registry-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<void> run(std::vector<std::string> argv) {
    return run_tool(
        os::real_processes(),
        argv,
        folder_,
        folder_ / "log",
        std::chrono::minutes(1),
        "install it");
  }

  os::Path folder_;
};

TEST_F(Registry, RunsInTheFolder) {
  EXPECT_TRUE(run({"sh", "-c", "echo hi > here"}));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "here"));
}

TEST_F(Registry, AFailureCarriesTheLastLines) {
  const auto failed = run({"sh", "-c", "echo out; echo why >&2; exit 3"});
  ASSERT_FALSE(failed);
  EXPECT_THAT(
      failed.error().to_string(), HasSubstr("ended with exit code 3: out why"));
}

TEST_F(Registry, AMissingProgramSaysHowToGetIt) {
  const auto failed = run({"lockstep-no-such-program"});
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(failed.error().fix(), "install it");
}

TEST_F(Registry, OneThatHangsIsKilled) {
  os::FakeProcesses processes;  // whatever is spawned never ends
  const auto failed = run_tool(
      processes,
      {"npm"},
      folder_,
      folder_ / "log",
      std::chrono::milliseconds(1),
      "");
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kTimeout);
  EXPECT_THAT(processes.signals[0], ElementsAre(SIGKILL));
}

TEST_F(Registry, NpmPackWithoutAnArchiveIsAnError) {
  os::FakeProcesses processes;
  processes.endings = {os::ExitStatus{}};
  const auto packed = npm_pack(processes, "a@1", folder_);
  ASSERT_FALSE(packed);
  EXPECT_THAT(packed.error().to_string(), HasSubstr("left no archive"));
  EXPECT_EQ(processes.spawned[0].argv.front(), "npm");
  EXPECT_EQ(processes.spawned[0].argv.back(), "a@1");
}

}  // namespace
}  // namespace lockstep::fetch
