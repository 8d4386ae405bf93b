#include "lockstep/launch/coordinator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "lockstep/launch/progress.h"
#include "lockstep/wire/handshake.h"

namespace lockstep::launch {
namespace {

using ::testing::HasSubstr;

class CoordinatorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() /
            ("lockstep-coordinator-" + std::to_string(::getpid()));
    run_ = std::make_unique<record::RunDirectory>(
        *record::RunDirectory::create(root_, "x"));
    coordinator_ = std::move(*Coordinator::open(files_, clock_, *run_));
    network_ = os::make_fake_network();
    ASSERT_TRUE(
        coordinator_->begin_generation(*network_, {"head", 0, ""}, "prog", 2)
            .has_value());
  }
  void TearDown() override {
    coordinator_.reset();
    std::filesystem::remove_all(root_);
  }

  void take(int rank, double time, wire::EventBody body) {
    wire::Event event{time, rank, "a", std::move(body)};
    const std::string line = wire::to_json(event);
    ASSERT_TRUE(
        coordinator_->take(RankEvent{std::move(event), line}, "a").has_value());
  }
  static wire::Iteration iteration(int64_t step, int64_t samples) {
    wire::Iteration done;
    done.step = step;
    done.samples = samples;
    done.total = done.compute = 0.5;
    return done;
  }
  std::string events() {
    EXPECT_TRUE(coordinator_->flush().has_value());
    return *files_.read(run_->events());
  }

  std::filesystem::path root_;
  os::FakeFileSystem files_;
  os::FakeClock clock_;
  std::unique_ptr<record::RunDirectory> run_;
  std::unique_ptr<os::Network> network_;
  std::unique_ptr<Coordinator> coordinator_;
};

TEST_F(CoordinatorTest, ServesTheRendezvousUnderItsKey) {
  struct stat facts{};
  ASSERT_EQ(::stat(coordinator_->key_file().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
  const auto key = wire::read_key_file(coordinator_->key_file());
  ASSERT_TRUE(key.has_value());
  const os::Address address = coordinator_->address();
  const auto deadline = os::Deadline::after(std::chrono::seconds(60));
  auto client = wire::connect_rendezvous(*network_, address, *key, deadline);
  ASSERT_TRUE(client.has_value()) << client.error().to_string();
  ASSERT_TRUE((*client)->put("k", "v").has_value());
  EXPECT_EQ(*(*client)->get("k", deadline), "v");
}

TEST_F(CoordinatorTest, MergesEventsAndTimes) {
  take(0, 10, iteration(1, 16));
  take(1, 10.1, iteration(1, 16));
  EXPECT_THAT(events(), HasSubstr(R"("kind":"iteration")"));
  EXPECT_EQ(
      *files_.read(run_->timing()),
      "rank,step,epoch,samples,data,compute,communication,wait,total\n"
      "0,1,0,16,0,0.5,0,0,0.5\n"
      "1,1,0,16,0,0.5,0,0,0.5\n");
}

TEST_F(CoordinatorTest, KeepsTheLiveState) {
  wire::Init init;
  init.facts["total_steps"] = "100";
  take(0, 9, init);
  for (int step = 1; step <= 11; ++step) {
    take(0, 10 + step, iteration(step, 8));
    take(1, 10 + step, iteration(step, 8));
  }
  take(0, 22, wire::Metric{11, 0, {{"loss_d", 0.25}}});
  const LiveState& live = coordinator_->live();
  EXPECT_EQ(live.step, 11);
  EXPECT_EQ(live.total_steps, 100);
  EXPECT_NEAR(live.samples_per_second, 16, 1);
  EXPECT_NEAR(live.seconds_per_step, 1, 1e-6);
  EXPECT_EQ(
      progress_text(
          live, 2, std::chrono::seconds(12), Money::from_dollars(0.002)),
      "epoch 0  step 11/100  loss_d 0.25  16 samples/s  12.0 s  $0.002000  "
      "eta 1m 29s");
}

TEST_F(CoordinatorTest, WritesAnExitForRanksThatDidNot) {
  take(0, 10, wire::Exit{0, 0, ""});
  RankExited quiet;
  quiet.rank = 0;
  RankExited crashed;
  crashed.rank = 1;
  crashed.status.signal = 11;
  ASSERT_TRUE(coordinator_->take(quiet, "a").has_value());
  ASSERT_TRUE(coordinator_->take(crashed, "a").has_value());
  const std::string text = events();
  size_t exits = 0;
  for (size_t at = 0; (at = text.find("\"exit\"", at)) != std::string::npos;
       ++at) {
    ++exits;
  }
  EXPECT_EQ(exits, 2);
  EXPECT_THAT(text, HasSubstr(R"("signal":11)"));
  ASSERT_TRUE(coordinator_->failure());
  EXPECT_EQ(coordinator_->failure()->rank, 1);
}

TEST_F(CoordinatorTest, KeepsTheReasonThatARankGave) {
  take(1, 10, wire::Exit{1, 0, "loss is NaN at step 7"});
  RankExited exit;
  exit.rank = 1;
  exit.pid = 5;
  exit.status.code = 1;
  ASSERT_TRUE(coordinator_->take(exit, "a").has_value());
  EXPECT_EQ(
      coordinator_->failure()->to_string(),
      "rank 1 failed on a (pid 5): exit code 1: loss is NaN at step 7");
}

TEST_F(CoordinatorTest, WritesNoSecretThatARankTells) {
  Job job;
  job.secret_values = {{"A", "hunter2"}, {"B", "pa\"ss\\wo"}, {"C", "init"}};
  coordinator_ = std::move(
      *Coordinator::open(files_, clock_, *run_, make_key(), EventMask(job)));
  ASSERT_TRUE(
      coordinator_->begin_generation(*network_, {"head", 0, ""}, "prog", 2)
          .has_value());
  take(
      0,
      1,
      wire::Init{"x hunter2", 2, 0, {{"f", "pa\"ss\\wo"}, {"hunter2", "g"}}});
  take(0, 2, wire::Phase{"at hunter2"});
  take(0, 3, wire::Metric{1, 0, {{"hunter2", 0.5}}});
  // As another JSON writer escapes it, and deeper than anything is read.
  wire::Event event{4, 0, "a", wire::Checkpoint{7, "/c/hunter2", "best", 1}};
  const std::string escaped =
      R"({"v":1,"kind":"checkpoint","time":4,"rank":0,"node":"a","step":7,)"
      R"("path":"/c/hu\u006eter2","reason":"best","seconds":1,"more":)" +
      std::string(1000, '[') + std::string(1000, ']') + "}";
  ASSERT_TRUE(coordinator_->take(RankEvent{event, escaped}, "a").has_value());
  take(1, 5, wire::Exit{1, 0, "no login with hunter2"});
  RankExited exit;
  exit.rank = 1;
  exit.pid = 5;
  exit.status.code = 1;
  ASSERT_TRUE(coordinator_->take(exit, "a").has_value());
  coordinator_->note(wire::Decision{"restart", "because of hunter2"});
  EXPECT_EQ(coordinator_->live().phase, "at ***");
  EXPECT_EQ(
      coordinator_->failure()->to_string(),
      "rank 1 failed on a (pid 5): exit code 1: no login with ***");
  const std::string text = events();
  EXPECT_THAT(text, ::testing::Not(HasSubstr("hunter2")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("u006e")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("ss\\")));
  EXPECT_THAT(text, HasSubstr(R"("path":"/c/***")"));
  EXPECT_THAT(text, HasSubstr(R"("kind":"init")"));
  EXPECT_THAT(text, HasSubstr("because of ***"));
}

TEST_F(CoordinatorTest, KeepsLinesOfAJobWithoutSecretsAsTheyCame) {
  const std::string line =
      R"({"v":1,"kind":"phase","time":4,"rank":0,"node":"a","name":"x\u006e",)"
      R"("more":[1]})";
  wire::Event event{4, 0, "a", wire::Phase{"xn"}};
  ASSERT_TRUE(coordinator_->take(RankEvent{event, line}, "a").has_value());
  EXPECT_THAT(events(), HasSubstr(line));
}

TEST_F(CoordinatorTest, StartsAGenerationAfresh) {
  take(0, 10, iteration(80, 1));
  RankExited exit;
  exit.rank = 1;
  exit.status.code = 1;
  ASSERT_TRUE(coordinator_->take(exit, "a").has_value());
  ASSERT_TRUE(coordinator_->failure());
  ASSERT_TRUE(
      coordinator_->begin_generation(*network_, {"head", 0, ""}, "prog", 2)
          .has_value());
  EXPECT_FALSE(coordinator_->failure());
  EXPECT_EQ(coordinator_->live().ranks_ended, 0);
  take(0, 20, iteration(64, 1));
  EXPECT_EQ(coordinator_->live().step, 64);
}

TEST_F(CoordinatorTest, TriesAgainAfterAFullDisk) {
  files_.set_space(0);
  take(0, 10, iteration(1, 1));
  EXPECT_FALSE(coordinator_->flush().has_value());
  files_.set_space(1 << 20);
  EXPECT_THAT(events(), HasSubstr("iteration"));
}

}  // namespace
}  // namespace lockstep::launch
