#include "lockstep/launch/mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "lockstep/launch/console_file.h"
#include "lockstep/launch/run_verbs.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The far end's own verbs, without ssh between; counts and cuts.
struct Line {
  reach::Handlers verbs = run_verbs();
  int calls = 0;
  int connects = 0;
  int left = -1;  // calls until it breaks; -1: never
  std::map<std::string, int> by_verb;
};

class LineSession : public reach::Session {
 public:
  explicit LineSession(Line& line) : line_(line) {}
  const std::string& host() const override { return host_; }
  bool was_sent() const override { return false; }
  Result<json> call(const std::string& verb, json arguments, os::Deadline)
      override {
    if (line_.left == 0) {
      return Error(ErrorCode::kUnavailable, "the line is cut");
    }
    line_.left -= line_.left > 0 ? 1 : 0;
    ++line_.calls;
    ++line_.by_verb[verb];
    // Through CBOR, as on the wire.
    const auto sent = json::from_cbor(json::to_cbor(arguments));
    LOCKSTEP_ASSIGN(const json answer, line_.verbs.at(verb)(sent));
    return json::from_cbor(json::to_cbor(answer));
  }

 private:
  Line& line_;
  std::string host_ = "n1";
};

class Lines : public Console {
 public:
  void output(int rank, const std::string& line) override {
    outputs.push_back(std::to_string(rank) + ": " + line);
  }
  void say(const std::string& text) override { said.push_back(text); }
  void alarm(const std::string& text) override { alarms.push_back(text); }
  void update(const LiveState& live, int, Duration, std::optional<Money>)
      override {
    step = live.step;
  }
  size_t room() const override { return 1 << 16; }
  bool wait_for_room() override { return true; }
  std::vector<std::string> outputs, said, alarms;
  int64_t step = 0;
};

class MirrorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "mirrorXXXXXX").string();
    folder_ = ::mkdtemp(name.data());
    far_ = *record::RunDirectory::open(folder_ / "far" / "run");
    near_ = *record::RunDirectory::open(folder_ / "near" / "run");
    RunStateFile state = far_state("running");
    state.pid = ::getpid();
    ASSERT_TRUE(write_run_state(*far_, state));
  }
  void TearDown() override { fs::remove_all(folder_); }

  RunStateFile far_state(const std::string& word) const {
    RunStateFile state;
    state.id = "run";
    state.state = word;
    state.host = "elsewhere";  // not checked against our processes
    state.world_size = 2;
    state.started = 1000;
    state.ended = word == "running" ? 0 : 1010;
    return state;
  }

  std::unique_ptr<Mirror> open() {
    RunStateFile state = far_state("running");
    state.head_host = "n1";
    state.head_directory = far_->path().string();
    state.started = 2000;
    return open_mirror(
        *near_, state, [this]() -> Result<std::unique_ptr<reach::Session>> {
          ++line_.connects;
          return std::unique_ptr<reach::Session>(
              std::make_unique<LineSession>(line_));
        });
  }

  static void
  write(const fs::path& path, const std::string& text, bool append = true) {
    std::ofstream(path, append ? std::ios::app : std::ios::trunc) << text;
  }
  static std::string read(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  Result<bool> update(Mirror& mirror) {
    return mirror.update(os::Deadline::after(std::chrono::seconds(30)));
  }

  fs::path folder_;
  std::optional<record::RunDirectory> far_, near_;
  Line line_;
};

TEST_F(MirrorTest, BringsWhatIsNewAndNothingTwice) {
  write(far_->rank_log(0), "one\n");
  write(far_->events(), "{}\n");
  const auto mirror = open();
  ASSERT_TRUE(update(*mirror).value());
  EXPECT_EQ(read(near_->rank_log(0)), "one\n");
  EXPECT_EQ(read(near_->events()), "{}\n");
  // What is here is never asked for again: a change of ours stays.
  write(near_->rank_log(0), "ONE\n", false);
  write(far_->rank_log(0), "two");
  ASSERT_TRUE(update(*mirror).value());
  EXPECT_EQ(read(near_->rank_log(0)), "ONE\ntwo");
}

TEST_F(MirrorTest, GoesOnWhereAnotherStopped) {
  write(far_->rank_log(1), "abc");
  ASSERT_TRUE(update(*open()).value());
  write(far_->rank_log(1), "def");
  ASSERT_TRUE(update(*open()).value());
  EXPECT_EQ(read(near_->rank_log(1)), "abcdef");
}

TEST_F(MirrorTest, ComesBackAfterACut) {
  const std::string text(5 << 20, 'x');
  write(far_->rank_log(0), text);
  const auto mirror = open();
  line_.left = 3;
  const auto cut = update(*mirror);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().code(), ErrorCode::kUnavailable);
  const auto there = read(near_->rank_log(0)).size();
  EXPECT_EQ(there, 3u << 20);  // pieces of 1 MiB
  line_.left = -1;
  line_.calls = 0;
  ASSERT_TRUE(update(*mirror).value());
  EXPECT_EQ(line_.connects, 2);
  EXPECT_EQ(line_.calls, 2);  // of what was left only
  EXPECT_TRUE(read(near_->rank_log(0)) == text);
}

TEST_F(MirrorTest, ManyFilesShareOneAnswer) {
  for (int rank = 0; rank < 40; ++rank) {
    write(far_->rank_log(rank), std::string(100 << 10, 'a'));
  }
  const auto mirror = open();
  ASSERT_TRUE(update(*mirror).value());
  EXPECT_LE(line_.calls, 6);
  for (int rank = 0; rank < 40; ++rank) {
    EXPECT_EQ(fs::file_size(near_->rank_log(rank)), 100u << 10);
  }
}

TEST_F(MirrorTest, TheEndIsWrittenWhenEverythingIsHere) {
  write(far_->rank_log(0), "last");
  write(far_->checkpoints() / "last.safetensors", std::string(3 << 20, 'c'));
  write(far_->path() / ".key", "secret");
  write(far_->logbook(), "page");
  RunStateFile ended = far_state("failed");
  ended.exit_code = 1;
  ASSERT_TRUE(write_run_state(*far_, ended));
  const auto mirror = open();
  ASSERT_TRUE(update(*mirror).value());
  EXPECT_EQ(mirror->state().state, "failed");
  EXPECT_FALSE(read_run_state(*near_).value().has_value());
  ASSERT_TRUE(mirror->fetch_all({}));
  const auto state = read_run_state(*near_).value().value();
  EXPECT_EQ(state.state, "failed");
  EXPECT_EQ(state.head_host, "n1");
  EXPECT_EQ(state.started, 2000);
  EXPECT_EQ(state.ended, 2010);
  EXPECT_EQ(read(near_->logbook()), "page");
  EXPECT_EQ(fs::file_size(near_->checkpoints() / "last.safetensors"), 3u << 20);
  EXPECT_FALSE(fs::exists(near_->path() / ".key"));
  // Again only what changed.
  line_.by_verb.clear();
  ASSERT_TRUE(mirror->fetch_all({}));
  EXPECT_EQ(line_.by_verb["fetch"], 0);
  write(far_->logbook(), " two");
  ASSERT_TRUE(mirror->fetch_all({}));
  EXPECT_EQ(line_.by_verb["fetch"], 1);
  EXPECT_EQ(read(near_->logbook()), "page two");
}

TEST_F(MirrorTest, WhatDoesNotFitStaysBehindCheckpointsFirst) {
  write(far_->logbook(), "page");
  fs::create_directories(far_->path() / "samples");
  write(far_->path() / "samples" / "large.png", std::string(3000, 'p'));
  const fs::path shards = far_->checkpoints() / "best.safetensors";
  fs::create_directories(shards);
  write(shards / "0", std::string(600, 'a'));
  write(shards / "1", std::string(600, 'b'));
  write(far_->checkpoints() / "last.safetensors", std::string(1000, 'c'));
  ASSERT_TRUE(write_run_state(*far_, far_state("done")));
  const auto mirror = open();
  ASSERT_TRUE(update(*mirror).value());
  const auto some = mirror->fetch_all(Bytes{5000});
  ASSERT_FALSE(some);
  EXPECT_EQ(some.error().code(), ErrorCode::kNoSpace);
  EXPECT_NE(
      some.error().to_string().find(
          "fetching checkpoints/best.safetensors (1.2 KiB)"),
      std::string::npos)
      << some.error().to_string();
  EXPECT_EQ(read(near_->logbook()), "page");
  EXPECT_TRUE(fs::exists(near_->path() / "samples" / "large.png"));
  EXPECT_TRUE(fs::exists(near_->checkpoints() / "last.safetensors"));
  EXPECT_FALSE(fs::exists(near_->checkpoints() / "best.safetensors" / "0"));
  EXPECT_EQ(read_run_state(*near_).value()->state, "done");
  EXPECT_TRUE(read_run_state(*near_).value()->incomplete);
  // Whoever asks for it gets it.
  ASSERT_TRUE(mirror->fetch_all({}));
  EXPECT_FALSE(read_run_state(*near_).value()->incomplete);
  EXPECT_EQ(
      fs::file_size(near_->checkpoints() / "best.safetensors" / "1"), 600u);
}

TEST_F(MirrorTest, OneMirrorsAndTheOthersLook) {
  const auto first = open();
  ASSERT_TRUE(update(*first).value());
  auto second = open();
  const int before = line_.calls;
  ASSERT_TRUE(update(*second).value());
  EXPECT_EQ(line_.calls, before);
}

TEST_F(MirrorTest, NamesCannotLeaveTheDirectory) {
  for (const char* name :
       {"../x", "/etc/passwd", "a/../../x", ".key", "", "a//b/.c"}) {
    EXPECT_FALSE(is_plain_name(name)) << name;
  }
  EXPECT_TRUE(is_plain_name("ranks/0.log"));
  const auto fetch = run_verbs().at("fetch");
  EXPECT_FALSE(
      fetch({{"directory", far_->path().string()}, {"name", "../../x"}}));
  line_.verbs["tail"] = [](const json&) -> Result<json> {
    return json{
        {"state", "{}"},
        {"more", false},
        {"pieces",
         {{{"name", "../evil"},
           {"offset", 0},
           {"data", json::binary({1, 2})}}}}};
  };
  const auto refused = update(*open());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCorrupt);
  EXPECT_FALSE(fs::exists(near_->path() / ".." / "evil"));
}

TEST_F(MirrorTest, WordsThatAreNotOursAreAnError) {
  line_.verbs["tail"] = [](const json&) -> Result<json> {
    return json{{"pieces", 3}};
  };
  const auto refused = update(*open());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCorrupt);
}

TEST_F(MirrorTest, FollowShowsWhatTheHeadAndRanksSaid) {
  {
    const auto console = ConsoleFile::open(*far_, os::real_clock()).value();
    console->say("restart 1 of 2");
    console->alarm("lockstep: rank 1 failed");
  }
  write(far_->rank_log(0), "zero\n");
  write(far_->rank_log(1), "half a line");
  write(
      far_->events(),
      wire::to_json({1, 0, "n1", wire::Iteration{.step = 7}}) + "\n");
  RunStateFile ended = far_state("done");
  ASSERT_TRUE(write_run_state(*far_, ended));
  const auto mirror = open();
  Lines lines;
  FollowOptions options;
  options.all_ranks = true;
  options.from_start = true;
  const auto state = follow(
      *near_, mirror.get(), lines, options, [] { return Wish::kNothing; });
  ASSERT_TRUE(state) << state.error().to_string();
  EXPECT_EQ(state->state, "done");
  EXPECT_THAT(lines.said, ElementsAre("restart 1 of 2"));
  EXPECT_THAT(lines.alarms, ElementsAre("lockstep: rank 1 failed"));
  EXPECT_THAT(lines.outputs, ElementsAre("0: zero", "1: half a line"));
  EXPECT_EQ(lines.step, 7);
}

TEST_F(MirrorTest, FollowOutlivesACutAndLeavesWhenAsked) {
  const auto mirror = open();
  line_.left = 0;
  Lines lines;
  int asked = 0;
  const auto state = follow(*near_, mirror.get(), lines, {}, [&] {
    ++asked;
    if (asked == 2) {
      line_.left = -1;
    }
    return asked > 4 ? Wish::kLeave : Wish::kNothing;
  });
  ASSERT_TRUE(state);
  EXPECT_TRUE(state->is_running());
  ASSERT_EQ(lines.said.size(), 2u);
  EXPECT_THAT(lines.said[0], HasSubstr("the line is cut"));
  EXPECT_THAT(lines.said[1], HasSubstr("answers again"));
}

}  // namespace
}  // namespace lockstep::launch
