#include "lockstep/record/event_log.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "lockstep/record/temporary_folder_test.h"

namespace lockstep::record {
namespace {

wire::Iteration iteration(int64_t step) {
  wire::Iteration body;
  body.step = step;
  body.samples = 16;
  body.total = 0.1;
  return body;
}

std::vector<wire::Event> events_of(EventReader& reader) {
  std::vector<wire::Event> events;
  const auto polled =
      reader.poll([&](const wire::Event& event, const std::string&) {
        events.push_back(event);
      });
  EXPECT_TRUE(polled) << polled.error().to_string();
  return events;
}

std::vector<wire::Event> events_in(const std::string& text) {
  std::vector<wire::Event> events;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = text.find('\n', at);
    EXPECT_NE(end, std::string::npos) << "half a line";
    auto event = wire::parse_event(text.substr(at, end - at));
    EXPECT_TRUE(event) << text.substr(at, end - at);
    if (event) {
      events.push_back(*event);
    }
    at = end == std::string::npos ? text.size() : end + 1;
  }
  return events;
}

// Every append waits until the test lets it through.
class StallingFiles : public os::FakeFileSystem {
 public:
  Result<std::unique_ptr<os::Appender>> open_append(
      const os::Path& path) override {
    LOCKSTEP_ASSIGN(auto inner, os::FakeFileSystem::open_append(path));
    return std::make_unique<Stalling>(*this, std::move(inner));
  }
  void stall(bool on) {
    const std::lock_guard lock(mutex_);
    stalled_ = on;
    change_.notify_all();
  }
  // Until an append is held.
  void await_append() {
    std::unique_lock lock(mutex_);
    change_.wait(lock, [this] { return held_; });
  }
  int appends() {
    const std::lock_guard lock(mutex_);
    return appends_;
  }

 private:
  class Stalling : public os::Appender {
   public:
    Stalling(StallingFiles& files, std::unique_ptr<os::Appender> inner)
        : files_(files), inner_(std::move(inner)) {}
    Result<void> append(std::string_view text) override {
      std::unique_lock lock(files_.mutex_);
      files_.held_ = files_.stalled_;
      files_.change_.notify_all();
      files_.change_.wait(lock, [this] { return !files_.stalled_; });
      files_.held_ = false;
      ++files_.appends_;
      return inner_->append(text);
    }
    Result<void> sync() override { return inner_->sync(); }

   private:
    StallingFiles& files_;
    std::unique_ptr<os::Appender> inner_;
  };
  std::mutex mutex_;
  std::condition_variable change_;
  bool stalled_ = false;
  bool held_ = false;
  int appends_ = 0;
};

TEST(EventWriter, StampsAndWrites) {
  os::FakeFileSystem files;
  auto writer = EventWriter::open(files, "/e.jsonl", 3, "node7");
  ASSERT_TRUE(writer);
  (*writer)->write(iteration(1));
  (*writer)->write(wire::Phase{"train"});
  (*writer)->flush();
  const auto events = events_in(*files.read("/e.jsonl"));
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].rank, 3);
  EXPECT_EQ(events[0].node, "node7");
  EXPECT_GT(events[0].time, 1.6e9);
  EXPECT_EQ(std::get<wire::Iteration>(events[0].body).step, 1);
  EXPECT_EQ(std::get<wire::Phase>(events[1].body).name, "train");
}

TEST(EventWriter, WithoutPathDiscards) {
  os::FakeFileSystem files;
  auto writer = EventWriter::open(files, "", 0, "n");
  ASSERT_TRUE(writer);
  (*writer)->write(wire::Phase{"train"});
  (*writer)->flush();
  EXPECT_EQ((*writer)->dropped(), 0);
}

TEST(EventWriter, AnUnwritablePlaceIsAnError) {
  const TemporaryFolder folder;
  auto writer = EventWriter::open(
      os::real_files(), folder.path() / "absent" / "e.jsonl", 0, "n");
  ASSERT_FALSE(writer);
  EXPECT_THAT(writer.error().to_string(), testing::HasSubstr("absent"));
}

TEST(EventWriter, TheEndDrains) {
  os::FakeFileSystem files;
  {
    auto writer = EventWriter::open(files, "/e.jsonl", 0, "n");
    for (int i = 1; i <= 1000; ++i) {
      (*writer)->write(iteration(i));
    }
  }
  EXPECT_EQ(events_in(*files.read("/e.jsonl")).size(), 1000U);
}

TEST(EventWriter, ManyThreadsLoseNothing) {
  os::FakeFileSystem files;
  {
    auto writer = EventWriter::open(files, "/e.jsonl", 0, "n");
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&writer] {
        for (int i = 1; i <= 500; ++i) {
          (*writer)->write(wire::Phase{"p"});
          if (i % 100 == 0) {
            (*writer)->flush();
          }
        }
      });
    }
  }
  EXPECT_EQ(events_in(*files.read("/e.jsonl")).size(), 2000U);
}

TEST(EventWriter, AStalledDiskDropsOnlyWhatMayBeDropped) {
  StallingFiles files;
  auto writer = EventWriter::open(files, "/e.jsonl", 0, "n");
  ASSERT_TRUE(writer);
  files.stall(true);
  (*writer)->write(wire::Phase{"first"});
  files.await_append();
  constexpr int kMany = 12'000;
  for (int i = 1; i <= kMany; ++i) {
    (*writer)->write(iteration(i));
  }
  for (int i = 0; i < 100; ++i) {
    (*writer)->write(wire::Phase{"kept"});
  }
  const int64_t dropped = (*writer)->dropped();
  EXPECT_GT(dropped, 0);
  EXPECT_LT(dropped, kMany);
  files.stall(false);
  (*writer)->flush();
  const auto events = events_in(*files.read("/e.jsonl"));
  EXPECT_EQ(static_cast<int64_t>(events.size()), 1 + kMany - dropped + 100);
  EXPECT_EQ(
      std::count_if(
          events.begin(),
          events.end(),
          [](const auto& event) {
            return std::holds_alternative<wire::Phase>(event.body);
          }),
      101);
  // Many events a write, not one each.
  EXPECT_LT(files.appends(), 50);
}

TEST(EventWriter, AFullDiskLosesNoLineAndDoublesNone) {
  os::FakeFileSystem files;
  auto writer = EventWriter::open(files, "/e.jsonl", 0, "n");
  (*writer)->write(wire::Phase{"before"});
  (*writer)->flush();
  files.set_space(25);  // a part of the next line fits
  (*writer)->write(wire::Phase{"during"});
  (*writer)->write(wire::Metric{1, 0, {{"loss", 2}}});
  (*writer)->flush();  // returns although the disk refuses
  files.set_space(1 << 20);
  (*writer)->write(wire::Phase{"after"});
  // The first flush may meet the retry that finds the space.
  (*writer)->flush();
  (*writer)->flush();
  const auto events = events_in(*files.read("/e.jsonl"));
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(std::get<wire::Phase>(events[1].body).name, "during");
  EXPECT_EQ(std::get<wire::Phase>(events[3].body).name, "after");
}

TEST(EventWriter, ClosesALineThatAKilledOneLeft) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "e.jsonl";
  std::ofstream(path) << "{\"v\":1,\"kind\":\"pha";
  {
    auto writer = EventWriter::open(os::real_files(), path, 0, "n");
    (*writer)->write(wire::Phase{"train"});
  }
  EventReader reader(path);
  EXPECT_EQ(events_of(reader).size(), 1U);
  EXPECT_EQ(reader.skipped(), 1);
}

class EventReaderTest : public testing::Test {
 protected:
  void append(const std::string& text) {
    std::ofstream(path_, std::ios::app | std::ios::binary) << text;
  }
  static std::string line(int64_t step) {
    return wire::to_json(
               {1.7e9 + static_cast<double>(step), 0, "n", iteration(step)}) +
           "\n";
  }
  TemporaryFolder folder_;
  os::Path path_ = folder_.path() / "e.jsonl";
};

TEST_F(EventReaderTest, FollowsAGrowingFile) {
  EventReader reader(path_);
  EXPECT_TRUE(events_of(reader).empty());  // absent
  append(line(1) + line(2));
  EXPECT_EQ(events_of(reader).size(), 2U);
  EXPECT_TRUE(events_of(reader).empty());
  const std::string third = line(3);
  append(third.substr(0, 20));
  EXPECT_TRUE(events_of(reader).empty());
  append(third.substr(20));
  const auto events = events_of(reader);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(std::get<wire::Iteration>(events[0].body).step, 3);
  EXPECT_EQ(reader.skipped(), 0);
}

TEST_F(EventReaderTest, PassesOverGarbage) {
  append(
      "garbage\n" + line(1) + std::string("\0\xff{}\n", 5) + "\n{\"v\":99}\n" +
      line(2));
  EventReader reader(path_);
  EXPECT_EQ(events_of(reader).size(), 2U);
  EXPECT_EQ(reader.skipped(), 3);
}

TEST_F(EventReaderTest, StartsAgainWhenTheFileWasCut) {
  EventReader reader(path_);
  append(line(1) + line(2) + line(3));
  EXPECT_EQ(events_of(reader).size(), 3U);
  std::filesystem::resize_file(path_, 0);
  append(line(7));
  const auto events = events_of(reader);
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(std::get<wire::Iteration>(events[0].body).step, 7);
}

TEST_F(EventReaderTest, StartsAgainWhenALongerFileTookItsPlace) {
  EventReader reader(path_);
  append(line(1) + line(2).substr(0, 30));
  EXPECT_EQ(events_of(reader).size(), 1U);
  std::filesystem::remove(path_);
  EXPECT_TRUE(events_of(reader).empty());
  append(line(11) + line(12) + line(13));
  EXPECT_EQ(events_of(reader).size(), 3U);
  EXPECT_EQ(reader.skipped(), 0);
}

TEST_F(EventReaderTest, ALineWithoutEndCostsNoMemoryForEver) {
  EventReader reader(path_);
  const std::string block(size_t{6} << 20, 'x');
  for (int i = 0; i < 4; ++i) {
    append(block);
    EXPECT_TRUE(events_of(reader).empty());
  }
  append(fmt::format("\n{}", line(1)));
  EXPECT_EQ(events_of(reader).size(), 1U);
  EXPECT_EQ(reader.skipped(), 1);
}

TEST_F(EventReaderTest, LinesAcrossBlocksAreWhole) {
  std::string text;
  constexpr int kLines = 8'000;  // over a MB: several reads
  for (int i = 1; i <= kLines; ++i) {
    text += line(i);
  }
  append(text);
  EventReader reader(path_);
  const auto events = events_of(reader);
  ASSERT_EQ(events.size(), static_cast<size_t>(kLines));
  EXPECT_EQ(std::get<wire::Iteration>(events.back().body).step, kLines);
  EXPECT_EQ(reader.skipped(), 0);
}

TEST_F(EventReaderTest, AFolderIsAnError) {
  EventReader reader(folder_.path());
  EXPECT_FALSE(reader.poll([](const wire::Event&, const std::string&) {}));
}

}  // namespace
}  // namespace lockstep::record
