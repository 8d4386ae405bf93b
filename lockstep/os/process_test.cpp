#include "lockstep/os/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <thread>

#include "lockstep/os/descriptor.h"

namespace lockstep::os {
namespace {

using std::chrono::seconds;

class Children : public ::testing::Test {
 protected:
  Children() {
    std::string name = ::testing::TempDir() + "lockstep-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~Children() override { std::filesystem::remove_all(folder_); }

  SpawnOptions shell(const std::string& script) {
    return SpawnOptions{
        .argv = {"sh", "-c", script},
        .environment = {{"PATH", "/usr/bin:/bin"}},
        .directory = {},
        .output = folder_ / "out",
        .new_group = true,
        .die_with_parent = false,
        .keep = {}};
  }
  std::string output() { return real_files().read(folder_ / "out").value(); }
  static ExitStatus end_of(Process& process) {
    return process.wait(Deadline::after(seconds(60))).value();
  }
  Path folder_;
};

TEST_F(Children, ExitCodeAndOutput) {
  SpawnOptions options = shell("echo out; echo err >&2; exit 3");
  auto process = real_processes().spawn(options).value();
  ExitStatus status = end_of(*process);
  EXPECT_EQ(status.code, 3);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.to_string(), "exit code 3");
  EXPECT_EQ(end_of(*process).code, 3) << "asked again";
  EXPECT_EQ(process->poll().value()->code, 3);
  EXPECT_EQ(output(), "out\nerr\n");
  // A second one appends.
  EXPECT_TRUE(end_of(*real_processes().spawn(shell("echo more")).value()).ok());
  EXPECT_EQ(output(), "out\nerr\nmore\n");
}

TEST_F(Children, EnvironmentAndFolderAreWhatWasGiven) {
  SpawnOptions options = shell("pwd; echo $GIVEN-${HOME-none}; cat");
  options.environment["GIVEN"] = "yes";
  options.directory = folder_;
  EXPECT_TRUE(end_of(*real_processes().spawn(options).value()).ok());
  EXPECT_EQ(
      output(), std::filesystem::canonical(folder_).string() + "\nyes-none\n");
}

TEST_F(Children, ProgramThatIsNotThere) {
  for (const char* name : {"no-such-program-x", "/no/such/program"}) {
    SpawnOptions options = shell("");
    options.argv = {name};
    auto process = real_processes().spawn(options);
    ASSERT_FALSE(process);
    EXPECT_EQ(process.error().code(), ErrorCode::kNotFound);
    EXPECT_NE(process.error().message().find(name), std::string::npos);
  }
  SpawnOptions options = shell("");
  options.argv = {};
  EXPECT_EQ(
      real_processes().spawn(options).error().code(), ErrorCode::kInvalidInput);
}

TEST_F(Children, FileThatMayNotRun) {
  ASSERT_TRUE(real_files().write_atomic(folder_ / "plain", "text"));
  SpawnOptions options = shell("");
  options.argv = {"plain"};
  options.environment["PATH"] = folder_.string() + ":/bin";
  EXPECT_EQ(
      real_processes().spawn(options).error().code(), ErrorCode::kPermission);
}

TEST_F(Children, FolderOrOutputThatIsNotThere) {
  SpawnOptions options = shell("true");
  options.directory = "/no/such/folder";
  auto process = real_processes().spawn(options);
  ASSERT_FALSE(process);
  EXPECT_NE(
      process.error().message().find("/no/such/folder"), std::string::npos);
  options = shell("true");
  options.output = "/no/such/folder/out";
  EXPECT_EQ(
      real_processes().spawn(options).error().code(), ErrorCode::kNotFound);
}

TEST_F(Children, WaitGivesUpAtItsDeadlineAndSignalEnds) {
  auto process = real_processes().spawn(shell("exec sleep 600")).value();
  EXPECT_FALSE(process->poll().value());
  EXPECT_EQ(
      process->wait(Deadline::after(std::chrono::milliseconds(1)))
          .error()
          .code(),
      ErrorCode::kTimeout);
  ASSERT_TRUE(process->signal(SIGTERM));
  ExitStatus status = end_of(*process);
  EXPECT_EQ(status.signal, SIGTERM);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.to_string(), "signal 15 (Terminated)");
  EXPECT_TRUE(process->signal(SIGKILL)) << "gone is fine";
}

// Reading the end of the pipe means that every holder of it has ended.
TEST_F(Children, SignalReachesGrandchildren) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Descriptor reader(ends[0]);
  Descriptor writer(ends[1]);
  SpawnOptions options = shell("sleep 600 & sleep 600 & echo go; wait");
  options.keep = {writer.get()};
  auto process = real_processes().spawn(options).value();
  writer.reset();
  while (output().empty()) {
    std::this_thread::yield();
  }
  ASSERT_TRUE(process->signal(SIGKILL));
  EXPECT_EQ(end_of(*process).signal, SIGKILL);
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 0);
}

TEST_F(Children, OnlyKeptDescriptorsStayOpen) {
  // Opened carelessly, as some library would.
  Descriptor leaked(::open("/dev/null", O_RDONLY));
  Descriptor kept(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  SpawnOptions options = shell("exec ls -l /proc/self/fd");
  options.keep = {kept.get()};
  EXPECT_TRUE(end_of(*real_processes().spawn(options).value()).ok());
  std::string links = output();
  EXPECT_NE(links.find("/dev/zero"), std::string::npos) << links;
  // Standard input is /dev/null; the leaked one would be a second.
  EXPECT_EQ(links.find("/dev/null"), links.rfind("/dev/null")) << links;
}

// Only what the user had ignored (nohup) stays ignored: not what we ignore or
// block ourselves. The test's own runner may ignore some, so all are set here.
TEST_F(Children, SignalsArriveAsInAFreshProcess) {
  std::map<int, sighandler_t> inherited;
  for (int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGTTOU}) {
    inherited[number] = ::signal(number, SIG_DFL);
  }
  for (int number : {SIGHUP, SIGPIPE}) {
    sighandler_t before = ::signal(number, SIG_IGN);
    inherited.try_emplace(number, before);
  }
  sigset_t blocked;
  sigset_t before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &blocked, &before);
  auto process = real_processes().spawn(shell(
      "sed -n 's/^SigBlk:[^0-9a-f]*//p; s/^SigIgn:[^0-9a-f]*//p' "
      "/proc/self/status"));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  for (auto [number, handler] : inherited) {
    ::signal(number, handler);
  }
  ASSERT_TRUE(process.has_value());
  EXPECT_TRUE(end_of(**process).ok());
  std::istringstream masks(output());
  uint64_t blocked_there = 1;
  uint64_t ignored_there = 0;
  masks >> std::hex >> blocked_there >> ignored_there;
  auto bit = [](int number) { return uint64_t{1} << (number - 1); };
  EXPECT_EQ(blocked_there, 0U);
  EXPECT_NE(ignored_there & bit(SIGHUP), 0U) << "nohup is honoured";
  for (int number : {SIGINT, SIGQUIT, SIGTERM, SIGCHLD, SIGPIPE}) {
    EXPECT_EQ(ignored_there & bit(number), 0U) << ::strsignal(number);
  }
}

TEST_F(Children, TakesDescriptorsAsItsStandardStreams) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  Descriptor reader(ends[0]);
  Descriptor writer(ends[1]);
  SpawnOptions options = shell("cat; echo err >&2; kill -INT $$; echo alive");
  options.standard = {::open("/dev/null", O_RDONLY), writer.get(), -1};
  options.ignore_interrupts = true;
  auto process = real_processes().spawn(options).value();
  ::close(options.standard[0]);
  writer.reset();
  char text[64] = {};
  EXPECT_EQ(::read(reader.get(), text, sizeof(text)), 6);
  EXPECT_STREQ(text, "alive\n");
  EXPECT_TRUE(end_of(*process).ok());
  EXPECT_EQ(output(), "err\n");
}

// The child is spawned from a thread that ends: it must die with it.
TEST_F(Children, DiesWithItsParent) {
  std::unique_ptr<Process> process;
  std::thread parent([&] {
    SpawnOptions options = shell("exec sleep 600");
    options.die_with_parent = true;
    process = real_processes().spawn(options).value();
  });
  parent.join();
  EXPECT_EQ(end_of(*process).signal, SIGKILL);
}

TEST(FakeProcesses, DoWhatTheTestSays) {
  FakeProcesses processes;
  SpawnOptions options;
  options.argv = {"trainer", "x"};
  auto process = processes.spawn(options).value();
  EXPECT_EQ(processes.spawned[0].argv[0], "trainer");
  EXPECT_FALSE(process->poll().value());
  EXPECT_EQ(
      process->wait(Deadline::never()).error().code(), ErrorCode::kTimeout);
  ASSERT_TRUE(process->signal(SIGINT));
  EXPECT_EQ(processes.signals[0], std::vector<int>{SIGINT});
  processes.endings[0] = ExitStatus{.code = 7, .signal = 0};
  EXPECT_EQ(process->wait(Deadline::never()).value().code, 7);
}

TEST(Environment, IsOurs) {
  ::setenv("LOCKSTEP_TEST_VARIABLE", "a=b", 1);
  EXPECT_EQ(environment().at("LOCKSTEP_TEST_VARIABLE"), "a=b");
  ::unsetenv("LOCKSTEP_TEST_VARIABLE");
  EXPECT_FALSE(environment().contains("LOCKSTEP_TEST_VARIABLE"));
}

}  // namespace
}  // namespace lockstep::os
