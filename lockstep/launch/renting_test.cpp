#include "lockstep/launch/renting.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/launch/run_verbs.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

constexpr Duration kAway = seconds(30);

class Renting : public ::testing::Test {
 protected:
  Renting()
      : folder_(
            fs::temp_directory_path() /
            ("lockstep-renting-" + std::to_string(::getpid()))),
        run_(record::RunDirectory::create(folder_, "turns").value()) {}
  ~Renting() override { fs::remove_all(folder_); }

  bool client() { return client_rents(run_, clock_).value(); }
  bool head() { return head_rents(run_, kAway, clock_).value(); }

  os::Path folder_;
  record::RunDirectory run_;
  os::FakeClock clock_;
};

TEST_F(Renting, AClientThatIsHeardOfKeepsItsTurn) {
  EXPECT_FALSE(head());  // it may only just have begun
  for (int beat = 0; beat < 10; ++beat) {
    clock_.advance(seconds(20));
    EXPECT_TRUE(client());
    clock_.advance(seconds(10));
    EXPECT_FALSE(head());
  }
}

TEST_F(Renting, AfterSilenceItIsTheHeadsForGood) {
  EXPECT_TRUE(client());
  clock_.advance(seconds(30));
  EXPECT_FALSE(head());
  clock_.advance(seconds(1));
  EXPECT_TRUE(head());
  EXPECT_FALSE(client());
  EXPECT_TRUE(head());
  EXPECT_FALSE(client());
}

TEST_F(Renting, AClientThatNeverCameIsWaitedForOnce) {
  EXPECT_FALSE(head());
  clock_.advance(seconds(31));
  EXPECT_TRUE(head());
}

TEST_F(Renting, AClockThatIsSetBackOrAFileOfNobodyBeginsAnew) {
  std::ofstream(run_.path() / ".renting") << "client 99999999999\n";
  EXPECT_FALSE(head());
  clock_.advance(seconds(31));
  EXPECT_TRUE(head());
  std::ofstream(run_.path() / ".renting") << "garbage";
  EXPECT_FALSE(head());
  EXPECT_TRUE(client());
}

// Whoever asks at the same moment: one answer.
TEST_F(Renting, NeverBothAtOnce) {
  for (int round = 0; round < 200; ++round) {
    std::ofstream(run_.path() / ".renting") << "client 1\n";
    std::atomic<int> turns = 0;
    std::thread near([&] { turns += client() ? 1 : 0; });
    std::thread far([&] { turns += head() ? 1 : 0; });
    near.join();
    far.join();
    ASSERT_EQ(turns, 1) << round;
  }
}

TEST_F(Renting, TheFarEndAnswersTheClient) {
  std::ofstream(run_.job()) << "name: turns\n";
  const auto verb = run_verbs().at("renting");
  const auto first = verb({{"directory", run_.path().string()}});
  ASSERT_TRUE(first) << first.error().to_string();
  EXPECT_TRUE(first->at("client").get<bool>());
  std::ofstream(run_.path() / ".renting") << "head\n";
  EXPECT_FALSE(
      verb({{"directory", run_.path().string()}})->at("client").get<bool>());
  EXPECT_FALSE(verb({{"directory", (folder_ / "none").string()}}));
}

}  // namespace
}  // namespace lockstep::launch
