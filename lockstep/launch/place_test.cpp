#include "lockstep/launch/place.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(State, IsSaidInWords) {
  EXPECT_EQ(
      describe_state("Name:\tx\nState:\tS (sleeping)\n", "futex_wait", "", ""),
      "sleeping in futex_wait");
  EXPECT_EQ(
      describe_state(
          "State:\tS (sleeping)\n",
          "0",
          "[<0>] hrtimer_nanosleep+0x74/0xf0\n[<0>] x+0/1\n",
          "230 0x0"),
      "sleeping in hrtimer_nanosleep");
  EXPECT_EQ(
      describe_state("State:\tS (sleeping)\n", "0", "", "230 0x0 0x0"),
      "sleeping in nanosleep");
  EXPECT_EQ(
      describe_state("State:\tS (sleeping)\n", "", "", "99999 0x0"),
      "sleeping in system call 99999");
  EXPECT_EQ(
      describe_state("State:\tS (sleeping)\n", "", "", "running"), "sleeping");
  EXPECT_EQ(describe_state("State:\tR (running)\n", "0", "", ""), "running");
  EXPECT_EQ(
      describe_state("State:\tD (disk sleep)\n", "nfs_wait", "", ""),
      "waiting for a device in nfs_wait");
  EXPECT_TRUE(
      describe_state("State:\tT (stopped)\n", "", "", "").starts_with("stop"));
  EXPECT_EQ(describe_state("", "", "", ""), "gone");
  EXPECT_EQ(describe_state("State:", "", "", ""), "gone");
}

TEST(Frames, AreReadFromGdb) {
  const std::string output =
      "[New LWP 7]\n48\tx.c: No such file or directory.\n"
      "#0  0x00007f in __GI___clock_nanosleep (clock_id=...) at "
      "../sysdeps/unix/clock_nanosleep.c:48\n"
      "#1  main () at main.cpp:7\n"
      "#2  0x00007f in __libc_start_call_main () from /lib/libc.so.6\n"
      "#3  0x0000 in ?? ()\n#\n#4\n";
  const auto frames = gdb_frames(output, 10);
  ASSERT_EQ(frames.size(), 4);
  EXPECT_EQ(frames[0], "__GI___clock_nanosleep (clock_nanosleep.c:48)");
  EXPECT_EQ(frames[1], "main (main.cpp:7)");
  EXPECT_EQ(frames[2], "__libc_start_call_main (libc.so.6)");
  EXPECT_EQ(frames[3], "??");
  EXPECT_EQ(gdb_frames(output, 2).size(), 2);
  EXPECT_TRUE(gdb_frames("", 2).empty());
}

TEST(Frames, AreReadFromPySpy) {
  const std::string output =
      "Process 5: python x.py\nPython v3.11.7 (/usr/bin/python3)\n\n"
      "Thread 6 (idle): \"Thread-1\"\n    run (threading.py:982)\n"
      "Thread 5 (idle): \"MainThread\"\n    inner (x.py:3)\n"
      "    <module> (x.py:7)\n"
      "Thread 7 (idle): \"Thread-2\"\n    other (threading.py:1)\n";
  EXPECT_EQ(
      python_frames(output, 8),
      (std::vector<std::string>{"inner (x.py:3)", "<module> (x.py:7)"}));
  EXPECT_TRUE(python_frames("Error: no", 8).empty());
}

class PlaceTest : public ::testing::Test {
 protected:
  int start(const std::vector<std::string>& argv) {
    os::SpawnOptions options;
    options.argv = argv;
    options.environment = os::environment();
    auto process = os::real_processes().spawn(options);
    EXPECT_TRUE(process.has_value());
    child_ = std::move(*process);
    return child_->pid();
  }
  void TearDown() override {
    if (child_ != nullptr) {
      (void)child_->signal(SIGKILL).has_value();
      (void)child_->wait(os::Deadline::after(seconds(30))).has_value();
    }
  }
  // Looks until the state has `text` in it.
  RankPlace place_with(int pid, const std::string& text) {
    RankPlace place;
    for (int i = 0; i < 300; ++i) {
      place = place_of(3, pid, quick());
      if (place.state.find(text) != std::string::npos) {
        return place;
      }
    }
    ADD_FAILURE() << place.state << " has no '" << text << "'";
    return place;
  }
  static PlaceTools quick() {
    return {.gdb = "", .py_spy = "", .watch = milliseconds(100)};
  }
  std::unique_ptr<os::Process> child_;
};

TEST_F(PlaceTest, TellsSleepFromWorkAndStop) {
  const int sleeper = start({"sleep", "1000"});
  const RankPlace place = place_with(sleeper, "nanosleep");
  EXPECT_EQ(place.rank, 3);
  EXPECT_TRUE(place.stack.empty());
  EXPECT_TRUE(place.missing.empty());
  ::kill(sleeper, SIGSTOP);
  place_with(sleeper, "stopped");
}

TEST_F(PlaceTest, SeesAProgramThatComputes) {
  const int busy = start({"bash", "-c", "while :; do :; done"});
  place_with(busy, "running, ");
}

TEST_F(PlaceTest, LooksThroughAShell) {
  const int shell = start({"bash", "-c", "sleep 1000; true"});
  place_with(shell, "nanosleep");
}

TEST_F(PlaceTest, SaysThatAProcessIsGone) {
  const int pid = start({"true"});
  ASSERT_TRUE(child_->wait(os::Deadline::after(seconds(60))).has_value());
  EXPECT_EQ(place_of(0, pid, quick()).state, "gone");
}

TEST_F(PlaceTest, SaysWhichToolIsMissing) {
  const int sleeper = start({"sleep", "1000"});
  const RankPlace place =
      place_of(0, sleeper, {.gdb = "no-such-gdb", .watch = milliseconds(10)});
  EXPECT_EQ(place.missing, "for a native stack: apt-get install gdb");
}

TEST_F(PlaceTest, EndsAToolThatHangs) {
  const int sleeper = start({"sleep", "1000"});
  // Takes gdb's arguments and never answers.
  const std::string fake = ::testing::TempDir() + "/slow-gdb";
  FILE* file = std::fopen(fake.c_str(), "w");
  std::fputs("#!/bin/sh\nexec sleep 1000\n", file);
  std::fclose(file);
  ASSERT_EQ(::chmod(fake.c_str(), 0755), 0);
  const RankPlace place = place_of(
      0,
      sleeper,
      {.gdb = fake, .watch = milliseconds(10), .patience = milliseconds(300)});
  EXPECT_EQ(place.missing, "gdb did not answer");
}

TEST_F(PlaceTest, AsksAboutManyWithoutWaiting) {
  const int sleeper = start({"sleep", "1000"});
  Places places(quick());
  for (int rank = 0; rank < 8; ++rank) {
    places.inspect(rank, sleeper);
  }
  EXPECT_TRUE(places.waiting());
  std::vector<RankPlace> done;
  const os::Deadline end = os::Deadline::after(seconds(60));
  while (places.waiting() && !end.passed()) {
    std::ranges::move(places.collect(), std::back_inserter(done));
  }
  EXPECT_EQ(done.size(), 8);
  places.inspect(0, sleeper);
  places.cancel();
  EXPECT_FALSE(places.waiting());
}

TEST_F(PlaceTest, GivesANativeStackByGdb) {
  if (std::system("command -v gdb >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "gdb is not installed";
  }
  const int sleeper = start({"sleep", "1000"});
  place_with(sleeper, "nanosleep");
  const RankPlace place = place_of(
      0, sleeper, {.watch = milliseconds(10), .patience = seconds(60)});
  EXPECT_NE(place.stack.find("nanosleep"), std::string::npos)
      << place.stack << place.missing;
  // The rank goes on afterwards.
  place_with(sleeper, "sleeping in");
}

}  // namespace
}  // namespace lockstep::launch
