#include "lockstep/fleet/fleet.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "lockstep/cloud/failure.h"
#include "lockstep/fleet/fake_nodes_test.h"

namespace lockstep::fleet {
namespace {

using cloud::cloud_error;
using cloud::Failure;
using nlohmann::json;

TEST(Fleet, BringsUpWhatIsWantedAndGivesItBack) {
  World world;
  Cluster cluster = small_cluster(3);
  cluster.groups[0].setup = {"docker", "echo hello"};
  const auto nodes = world.up(cluster);
  ASSERT_TRUE(nodes) << nodes.error().to_string();
  ASSERT_EQ(nodes->size(), 3U);
  EXPECT_EQ((*nodes)[2].name, "blue-2");
  for (const Node& node : *nodes) {
    EXPECT_EQ(node.instance.zone, (*nodes)[0].instance.zone);
    const auto& scripts = world.shell.scripts[node.name];
    EXPECT_NE(scripts.back().find("echo hello"), std::string::npos);
  }
  const auto machines = *world.cloud.instances({});
  for (const auto& one : machines) {
    EXPECT_EQ(tag_of(one.tags, cloud::kClusterTag), "blue");
    EXPECT_EQ(tag_of(one.tags, kTimerTag), "runs");
    EXPECT_EQ(tag_of(one.tags, cloud::kOwnerTag), "me@here");
    EXPECT_GE(std::atof(tag_of(one.tags, kHourlyTag).c_str()), 1.0);
  }
  ASSERT_TRUE(world.down());
  EXPECT_EQ(world.num_things(), 0U);
  // Again, with the same name, is another life.
  ASSERT_TRUE(world.up(cluster));
  EXPECT_EQ(world.cloud.num_live(), 3U);
  EXPECT_EQ(world.cloud.num_launched(), 6U);
}

TEST(Fleet, UpAgainChangesNothingAndScalesInBothDirections) {
  World world;
  ASSERT_TRUE(world.up(small_cluster(2)));
  ASSERT_TRUE(world.up(small_cluster(2)));
  EXPECT_EQ(world.cloud.num_launched(), 2U);
  ASSERT_TRUE(world.up(small_cluster(4)));
  EXPECT_EQ(world.cloud.num_launched(), 4U);
  const auto one = world.up(small_cluster(1));
  ASSERT_TRUE(one);
  EXPECT_EQ(one->front().name, "blue-0");
  EXPECT_EQ(world.cloud.num_live(), 1U);
}

// The controller dies around every record; each time the next `up` finishes,
// or the next `down` undoes, and nothing is launched twice.
TEST(Fleet, ACrashAroundAnyRecordIsFinishedOrUndone) {
  using Moment = JournalOptions::Moment;
  int records = 0;
  Cluster cluster = small_cluster(3);
  cluster.groups[0].setup = {"echo hello"};
  {
    World world;
    ASSERT_TRUE(world.up(cluster, [&](int number, Moment) {
      records = std::max(records, number);
      return Result<void>();
    }));
  }
  ASSERT_GT(records, 15);
  for (int stop = 1; stop <= records; ++stop) {
    for (const Moment moment : {Moment::kBefore, Moment::kAfter}) {
      for (const bool finish : {true, false}) {
        World world;
        bool crashed = false;
        // Nothing can be written any more, so nothing is begun any more.
        (void)world
            .up(cluster,
                [&](int number, Moment when) -> Result<void> {
                  if (number == stop && when == moment) {
                    crashed = true;
                    return Error(ErrorCode::kAborted, "killed");
                  }
                  return {};
                })
            .has_value();
        ASSERT_TRUE(crashed) << stop;
        const size_t before = world.cloud.num_launched();
        EXPECT_LE(before, 3U);
        if (finish) {
          const auto nodes = world.up(cluster);
          ASSERT_TRUE(nodes) << stop << ": " << nodes.error().to_string();
          EXPECT_EQ(world.cloud.num_live(), 3U) << stop;
          EXPECT_EQ(world.cloud.num_launched(), 3U) << stop;
        } else {
          const auto gone = world.down();
          ASSERT_TRUE(gone) << stop << ": " << gone.error().to_string();
          EXPECT_EQ(world.num_things(), 0U) << stop;
          EXPECT_EQ(world.cloud.num_launched(), before) << stop;
        }
      }
    }
  }
}

TEST(Fleet, AMachineOfWhichNobodyHeardIsFoundAgain) {
  World world;
  // Its answer is lost, and the cloud does not list it for a while.
  world.cloud.set_blindness(std::chrono::seconds(8));
  world.cloud.lose_answer("launch");
  const auto lost = world.up(small_cluster(1));
  ASSERT_FALSE(lost);
  EXPECT_EQ(world.cloud.num_launched(), 1U);
  EXPECT_EQ(world.cloud.num_live(), 0U);
  EXPECT_EQ(world.num_things(), 0U);
}

TEST(Fleet, ShortagesLeadToOtherPlacesOrToTheMinimum) {
  World world;
  Cluster cluster = small_cluster(3);
  world.cloud.set_capacity("c5.xlarge", 1);
  const auto refused = world.up(cluster);
  ASSERT_FALSE(refused);
  EXPECT_EQ(cloud::failure_of(refused.error()), Failure::kQuota)
      << refused.error().to_string();
  EXPECT_EQ(world.num_things(), 0U);
  cluster.groups[0].fallback = {"m5.xlarge"};
  const auto mixed = world.up(cluster);
  ASSERT_TRUE(mixed) << mixed.error().to_string();
  EXPECT_EQ((*mixed)[0].instance.type, "c5.xlarge");
  EXPECT_EQ((*mixed)[2].instance.type, "m5.xlarge");
  ASSERT_TRUE(world.down());
  cluster.groups[0].fallback.clear();
  cluster.groups[0].minimum = 1;
  const auto fewer = world.up(cluster);
  ASSERT_TRUE(fewer) << fewer.error().to_string();
  EXPECT_EQ(fewer->size(), 1U);
}

TEST(Fleet, OneThatNeverAnswersIsToldAndEverythingIsGivenBack) {
  World world;
  world.shell.silent = {"blue-1"};
  const auto refused = world.up(small_cluster(2));
  ASSERT_FALSE(refused);
  const std::string words = refused.error().to_string();
  EXPECT_NE(words.find("blue-1"), std::string::npos) << words;
  EXPECT_NE(words.find("did not answer ssh within 5m"), std::string::npos)
      << words;
  EXPECT_NE(words.find("Connection refused"), std::string::npos) << words;
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(world.num_things(), 0U);
  Cluster cluster = small_cluster(2);
  cluster.groups[0].minimum = 1;
  const auto one = world.up(cluster);
  ASSERT_TRUE(one) << one.error().to_string();
  EXPECT_EQ(one->size(), 1U);
  EXPECT_EQ(world.cloud.num_live(), 1U);
}

TEST(Fleet, ASetUpThatFailsGivesEverythingBack) {
  World world;
  Cluster cluster = small_cluster(2);
  cluster.groups[0].setup = {"true", "apt-get install nonsense"};
  world.shell.failing["blue-1"] = "nonsense";
  const auto refused = world.up(cluster);
  ASSERT_FALSE(refused);
  const std::string words = refused.error().to_string();
  EXPECT_NE(words.find("blue-1: set-up step 2"), std::string::npos) << words;
  EXPECT_NE(words.find("exit code 7"), std::string::npos) << words;
  EXPECT_EQ(world.num_things(), 0U);
}

TEST(Fleet, AFailedScaleKeepsWhatWasThere) {
  World world;
  ASSERT_TRUE(world.up(small_cluster(2)));
  // Whatever fails, and wherever.
  for (const std::string call : {"instances", "key_pair", "launch"}) {
    world.cloud.fail(call, cloud_error(Failure::kPermission, "no"), 1);
    ASSERT_FALSE(world.up(small_cluster(3))) << call;
    EXPECT_EQ(world.cloud.num_live(), 2U) << call;
  }
  world.shell.silent = {"blue-3"};
  ASSERT_FALSE(world.up(small_cluster(4)));
  EXPECT_EQ(world.cloud.num_live(), 2U);
  world.stopped = true;
  const auto stopped = world.up(small_cluster(3));
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code(), ErrorCode::kInterrupted);
  EXPECT_EQ(world.cloud.num_live(), 2U);
}

TEST(Fleet, RefusalsEndItAtOnceAndLeaveNothing) {
  for (const std::string call :
       {"key_pair", "security_group", "launch", "set_tags"}) {
    for (const Failure failure :
         {Failure::kPermission,
          Failure::kBadRequest,
          Failure::kCredentials,
          Failure::kTransient}) {
      World world;
      world.cloud.fail(call, cloud_error(failure, "in the cloud's words"), 9);
      const auto refused = world.up(small_cluster(2));
      ASSERT_FALSE(refused);
      EXPECT_EQ(cloud::failure_of(refused.error()), failure) << call;
      EXPECT_EQ(world.num_things(), 0U) << call;
    }
  }
}

TEST(Fleet, CostsAreThoseOfAllLives) {
  World world;
  ASSERT_TRUE(world.up(small_cluster(2)));
  world.clock.advance(std::chrono::hours(1));
  ASSERT_TRUE(world.up(small_cluster(1)));
  world.clock.advance(std::chrono::hours(1));
  auto journal = *Journal::open(
      {.folder = world.folder, .clock = &world.clock, .hook = {}});
  Fleet fleet(world.options(*journal));
  const auto cost = fleet.cost();
  ASSERT_TRUE(cost);
  // A disk costs a little too.
  EXPECT_NEAR(cost->so_far.dollars(), 3, 0.05);
  EXPECT_NEAR(cost->hourly.dollars(), 1, 0.02);
}

TEST(Fleet, AMachineThatEndedItselfIsBilledUntilThen) {
  World world;
  const auto nodes = world.up(small_cluster(2));
  ASSERT_TRUE(nodes);
  world.clock.advance(std::chrono::hours(1));
  ASSERT_TRUE(world.cloud.terminate({(*nodes)[1].instance.id}));
  world.clock.advance(std::chrono::hours(2));
  auto journal = *Journal::open(
      {.folder = world.folder, .clock = &world.clock, .hook = {}});
  Fleet fleet(world.options(*journal));
  EXPECT_NEAR(fleet.cost()->so_far.dollars(), 4, 0.05);
  // What the journal says of it is the end, not the look.
  world.clock.advance(std::chrono::hours(1));
  EXPECT_NEAR(fleet.cost()->so_far.dollars(), 5, 0.05);
  const auto ended = journal->last("ended", (*nodes)[1].instance.id);
  ASSERT_TRUE(ended);
  EXPECT_NEAR(world.clock.unix_seconds() - time_of_end(*ended), 3 * 3600, 60);
}

TEST(Fleet, AMachineWhoseTimeIsOverIsNotRentedAgain) {
  World world;
  Cluster cluster = small_cluster(1);
  cluster.max_duration = std::chrono::minutes(1);
  world.shell.silent = {"blue-0"};
  // It boots for longer than it may live.
  bool is_over = false;
  world.shell.asked = [&] {
    if (is_over) {
      // Whoever asks moves the clock: the fleet shall look meanwhile.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    is_over = true;
    world.clock.advance(std::chrono::seconds(40));
    const auto machines = *world.cloud.instances({});
    (void)world.cloud.terminate({machines.back().id}).has_value();
  };
  const auto nodes = world.up(cluster);
  ASSERT_FALSE(nodes);
  EXPECT_NE(
      nodes.error().to_string().find("max_duration was over"),
      std::string::npos)
      << nodes.error().to_string();
  EXPECT_EQ(world.cloud.num_launched(), 1U);
}

TEST(Fleet, TheEndOfABudgetIsInTheMachinesOwnTimer) {
  World world;
  Cluster cluster = small_cluster(2);
  cluster.budget = Money::from_dollars(4);
  const double now = world.clock.unix_seconds();
  ASSERT_TRUE(world.up(cluster));
  auto journal = *Journal::open(
      {.folder = world.folder, .clock = &world.clock, .hook = {}});
  const std::string script =
      journal->last("launch")->order.value("user_data", "");
  const size_t at = script.find("' > '/var/lib/lockstep/end'");
  ASSERT_NE(at, std::string::npos);
  const double end = std::atof(script.substr(at - 10, 10).c_str());
  // Two machines at a dollar: two hours, less a little for disk and shutdown.
  EXPECT_LT(end, now + 7200);
  EXPECT_GT(end, now + 7000);
}

TEST(Fleet, MachinesOfThatNameThatOthersMadeAreLeftAlone) {
  World world;
  ASSERT_TRUE(world.up(small_cluster(2)));
  // The same name on another machine, whose journal knows nothing of it.
  const os::Path here = world.folder;
  world.folder += "-elsewhere";
  const auto refused = world.up(small_cluster(1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kExists);
  EXPECT_NE(
      refused.error().to_string().find("made elsewhere, by me@here"),
      std::string::npos)
      << refused.error().to_string();
  EXPECT_EQ(world.cloud.num_live(), 2U);
  std::filesystem::remove_all(world.folder);
  world.folder = here;
  ASSERT_TRUE(world.up(small_cluster(1)));
  EXPECT_EQ(world.cloud.num_live(), 1U);
}

TEST(Fleet, ABudgetThatIsUsedUpRentsNoMore) {
  World world;
  Cluster cluster = small_cluster(1);
  cluster.budget = Money::from_dollars(1);
  const auto nodes = world.up(cluster);
  ASSERT_TRUE(nodes);
  // All but a few seconds of it.
  world.clock.advance(std::chrono::seconds(3580));
  ASSERT_TRUE(world.cloud.terminate({nodes->front().instance.id}));
  const auto refused = world.up(cluster);
  ASSERT_FALSE(refused);
  EXPECT_NE(
      refused.error().to_string().find("the budget of $1.00"),
      std::string::npos)
      << refused.error().to_string();
  EXPECT_EQ(world.cloud.num_launched(), 1U);
  // Refused again: the first refusal began no life of its own.
  ASSERT_FALSE(world.up(cluster));
  cluster.budget = Money::from_dollars(2);
  ASSERT_TRUE(world.up(cluster));
}

TEST(Fleet, AnotherLifeHasABudgetOfItsOwn) {
  World world;
  Cluster cluster = small_cluster(1);
  cluster.budget = Money::from_dollars(1);
  ASSERT_TRUE(world.up(cluster));
  world.clock.advance(std::chrono::minutes(59));
  ASSERT_TRUE(world.down());
  world.clock.advance(std::chrono::minutes(1));
  // The cloud still lists the machine of the first one.
  const double now = world.clock.unix_seconds();
  const auto again = world.up(cluster);
  ASSERT_TRUE(again) << again.error().to_string();
  auto journal = *Journal::open(
      {.folder = world.folder, .clock = &world.clock, .hook = {}});
  const std::string script =
      journal->last("launch")->order.value("user_data", "");
  const size_t at = script.find("' > '/var/lib/lockstep/end'");
  ASSERT_NE(at, std::string::npos);
  EXPECT_GT(std::atof(script.substr(at - 10, 10).c_str()), now + 3400);
  Fleet fleet(world.options(*journal));
  EXPECT_LT(fleet.cost()->so_far.dollars(), 0.1);
}

TEST(Fleet, WhatLeftTheMachinesIsPartOfTheCost) {
  World world;
  ASSERT_TRUE(world.up(small_cluster(1)));
  auto journal = *Journal::open(
      {.folder = world.folder, .clock = &world.clock, .hook = {}});
  Fleet fleet(world.options(*journal));
  const Money before = fleet.cost()->so_far;
  ASSERT_TRUE(fleet.note_traffic(Bytes{2'000'000'000}));
  EXPECT_NEAR((fleet.cost()->so_far - before).dollars(), 0.18, 1e-9);
}

TEST(Fleet, EndsAndClaimsAreByTheCloudsClock) {
  World world;
  // The laptop is an hour behind.
  const Duration skew = std::chrono::hours(1);
  Cluster cluster = small_cluster(1);
  cluster.max_duration = std::chrono::minutes(10);
  auto journal = *Journal::open(
      {.folder = world.folder, .clock = &world.clock, .hook = {}});
  FleetOptions options = world.options(*journal);
  options.skew = [&] { return skew; };
  const double there = world.clock.unix_seconds() + to_seconds(skew);
  Fleet fleet(std::move(options));
  const auto plan = make_plan(world.cloud, world.book, cluster);
  ASSERT_TRUE(plan);
  ASSERT_TRUE(fleet.acquire(cluster, *plan));
  const json order = journal->last("launch")->order;
  const std::string script = order.value("user_data", "");
  const size_t at = script.find("' > '/var/lib/lockstep/end'");
  ASSERT_NE(at, std::string::npos);
  const double end = std::atof(script.substr(at - 10, 10).c_str());
  EXPECT_NEAR(end, there + 600 - kShutdownSeconds, 5);
  const auto tags = order.value("tags", cloud::Tags());
  EXPECT_GT(std::atof(tag_of(tags, kUntilTag).c_str()), there + 600);
}

TEST(Lease, AnEndByBudgetIsTheEndOfTheLease) {
  // As sh reads the files; the folder is a fixed one.
  const std::string look = lease_look_script();
  const size_t first = look.find("/var/lib/lockstep/end");
  EXPECT_NE(first, std::string::npos);
  EXPECT_NE(look.find("/var/lib/lockstep/lease/end"), std::string::npos);
  EXPECT_LT(first, look.find("/var/lib/lockstep/lease/until"));
  World world;
  EXPECT_FALSE(time_to_end(world.shell, {}, os::Deadline::never()));
  Node node;
  node.name = "blue-0";
  const auto left = time_to_end(world.shell, {node}, os::Deadline::never());
  ASSERT_TRUE(left);
  EXPECT_NEAR(to_seconds(*left), 600, 1);
}

}  // namespace
}  // namespace lockstep::fleet
