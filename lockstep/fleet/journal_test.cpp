#include "lockstep/fleet/journal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace lockstep::fleet {
namespace {

class JournalTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("lockstep-journal-" + std::to_string(::getpid()));
    std::filesystem::remove_all(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<Journal> open() {
    auto journal = Journal::open({.folder = folder_});
    EXPECT_TRUE(journal) << journal.error().to_string();
    return std::move(*journal);
  }
  os::Path folder_;
};

TEST_F(JournalTest, WhatWasBegunAndNotDoneIsKnownAfterACrash) {
  {
    auto journal = open();
    const int first = *journal->begin("launch", "b-0", {{"token", "t"}});
    ASSERT_TRUE(journal->done(first, {{"id", "i-1"}}));
    ASSERT_TRUE(journal->begin("launch", "b-1", {{"token", "u"}}));
    ASSERT_TRUE(journal->note("want", "b", {{"id", "x"}}));
  }
  auto journal = open();
  ASSERT_EQ(journal->unfinished().size(), 1U);
  EXPECT_EQ(journal->unfinished()[0].subject, "b-1");
  EXPECT_EQ(journal->unfinished()[0].order["token"], "u");
  EXPECT_EQ((*journal->last("launch", "b-0")->outcome)["id"], "i-1");
  EXPECT_EQ(journal->last("want")->order["id"], "x");
  EXPECT_FALSE(journal->last("setup"));
  ASSERT_TRUE(journal->done(journal->unfinished()[0].number));
  EXPECT_TRUE(journal->unfinished().empty());
  EXPECT_EQ(Journal::read(folder_)->size(), 3U);
}

TEST_F(JournalTest, ATornLineIsDropped) {
  {
    auto journal = open();
    ASSERT_TRUE(journal->begin("launch", "b-0", nullptr));
  }
  auto& files = os::real_files();
  const std::string whole = *files.read(journal_file(folder_));
  for (const std::string torn :
       {"{\"n\":2,\"of\":1", "{\"n\":2,\"of\":1,\"outcome\":null}", "\0\0\0"}) {
    ASSERT_TRUE(files.write_atomic(journal_file(folder_), whole + torn));
    auto journal = open();
    EXPECT_EQ(journal->unfinished().size(), 1U) << torn;
    EXPECT_EQ(*journal->begin("x", "", nullptr), 2);
    journal.reset();
    EXPECT_EQ(Journal::read(folder_)->size(), 2U) << torn;
  }
}

TEST_F(JournalTest, OneProcessAtATime) {
  auto journal = open();
  const auto second = Journal::open({.folder = folder_});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(second.error().to_string().find("another"), std::string::npos);
  journal.reset();
  EXPECT_TRUE(Journal::open({.folder = folder_}));
}

TEST_F(JournalTest, TheHookSeesEveryRecordAroundTheDisk) {
  std::vector<std::pair<int, bool>> seen;
  JournalOptions options;
  options.folder = folder_;
  options.hook = [&](int number, JournalOptions::Moment moment) {
    const bool is_there =
        os::real_files()
            .read(journal_file(folder_))
            ->find("\"n\":" + std::to_string(number)) != std::string::npos;
    EXPECT_EQ(is_there, moment == JournalOptions::Moment::kAfter);
    seen.emplace_back(number, is_there);
    return Result<void>();
  };
  auto journal = *Journal::open(options);
  const int step = *journal->begin("a", "", nullptr);
  ASSERT_TRUE(journal->done(step));
  EXPECT_EQ(seen.size(), 4U);
}

TEST_F(JournalTest, NothingIsWrittenAfterAFailure) {
  JournalOptions options;
  options.folder = folder_;
  options.hook = [](int number, JournalOptions::Moment) -> Result<void> {
    if (number == 2) {
      return Error(ErrorCode::kIo, "the disk is gone");
    }
    return {};
  };
  auto journal = *Journal::open(options);
  ASSERT_TRUE(journal->begin("a", "", nullptr));
  EXPECT_FALSE(journal->begin("b", "", nullptr));
  EXPECT_FALSE(journal->begin("c", "", nullptr));
  EXPECT_EQ(Journal::read(folder_)->size(), 1U);
}

TEST_F(JournalTest, IsForgottenWhole) {
  auto journal = open();
  ASSERT_TRUE(journal->begin("a", "", nullptr));
  ASSERT_TRUE(journal->forget());
  EXPECT_TRUE(journal->steps().empty());
  EXPECT_EQ(*journal->begin("b", "", nullptr), 1);
  journal.reset();
  EXPECT_EQ(open()->steps().size(), 1U);
}

}  // namespace
}  // namespace lockstep::fleet
