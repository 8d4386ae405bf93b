#include "lockstep/record/csv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep::record {
namespace {

const os::Path kPath = "/run/metrics.csv";

TEST(MetricsTable, WritesOneLineAStep) {
  os::FakeFileSystem files;
  auto table = MetricsTable::open(files, kPath);
  ASSERT_TRUE(table);
  ASSERT_TRUE(table->add(1, 0, {{"loss", 0.1}, {"acc", 0.5}}));
  ASSERT_TRUE(table->add(2, 0, {{"loss", 1.0 / 3}, {"acc", 1}}));
  EXPECT_EQ(
      *files.read(kPath),
      "step,epoch,acc,loss\n1,0,0.5,0.1\n2,0,1,0.3333333333333333\n");
}

TEST(MetricsTable, GainsColumns) {
  os::FakeFileSystem files;
  auto table = MetricsTable::open(files, kPath);
  ASSERT_TRUE(table->add(1, 0, {{"loss", 2}}));
  ASSERT_TRUE(table->add(2, 0, {{"loss", 1}, {"val, all", 3}}));
  ASSERT_TRUE(table->add(3, 1, {{"loss", 0.5}}));
  EXPECT_EQ(
      *files.read(kPath),
      "step,epoch,loss,\"val, all\"\n1,0,2,\n2,0,1,3\n3,1,0.5,\n");
}

TEST(MetricsTable, MergesRowsOfAStep) {
  os::FakeFileSystem files;
  auto table = MetricsTable::open(files, kPath);
  ASSERT_TRUE(table->add(1, 0, {{"loss", 2}}));
  ASSERT_TRUE(table->add(2, 0, {{"loss", 1}}));
  ASSERT_TRUE(table->add(2, 0, {{"val", 3}}));
  ASSERT_TRUE(table->add(1, 0, {{"val", 4}}));
  ASSERT_TRUE(table->add(3, 0, {{"val", 5}}));
  EXPECT_EQ(
      *files.read(kPath), "step,epoch,loss,val\n1,0,2,4\n2,0,1,3\n3,0,,5\n");
  EXPECT_EQ(table->rows().size(), 3U);
}

TEST(MetricsTable, AMetricCalledAsARowsOwnHasNoColumn) {
  os::FakeFileSystem files;
  auto table = MetricsTable::open(files, kPath);
  ASSERT_TRUE(table);
  ASSERT_TRUE(table->add(2, 0, {{"epoch", 10}, {"step", 7}, {"loss", 0.5}}));
  ASSERT_TRUE(table->add(2, 0, {{"epoch", 11}, {"acc", 1}}));
  ASSERT_TRUE(table->add(3, 1, {{"step", 8}, {"loss", 0.25}}));
  EXPECT_EQ(*files.read(kPath), "step,epoch,loss,acc\n2,0,0.5,1\n3,1,0.25,\n");
  EXPECT_THAT(table->columns(), testing::ElementsAre("loss", "acc"));
}

TEST(MetricsTable, ReadsBackExactly) {
  os::FakeFileSystem files;
  const std::map<std::string, double> values = {
      {"a", 0.1 + 0.2},
      {"b", 5e-324},
      {"c", std::numeric_limits<double>::max()},
      {"d", std::nan("")},
      {"e", -std::numeric_limits<double>::infinity()}};
  {
    auto table = MetricsTable::open(files, kPath);
    ASSERT_TRUE(table->add(7, 2, values));
  }
  auto table = MetricsTable::open(files, kPath);
  ASSERT_TRUE(table) << table.error().to_string();
  ASSERT_EQ(table->rows().size(), 1U);
  const auto& row = table->rows()[0];
  EXPECT_EQ(row.step, 7);
  EXPECT_EQ(row.epoch, 2);
  for (const char* name : {"a", "b", "c", "e"}) {
    EXPECT_EQ(row.values.at(name), values.at(name)) << name;
  }
  EXPECT_TRUE(std::isnan(row.values.at("d")));
}

TEST(MetricsTable, AResumedRunDropsWhatCameAfterItsCheckpoint) {
  os::FakeFileSystem files;
  {
    auto table = MetricsTable::open(files, kPath);
    for (int step = 1; step <= 5; ++step) {
      ASSERT_TRUE(table->add(step, 0, {{"loss", step}}));
    }
  }
  auto table = MetricsTable::open(files, kPath, 3);
  ASSERT_TRUE(table);
  ASSERT_TRUE(table->add(4, 0, {{"loss", 40}}));
  EXPECT_EQ(
      *files.read(kPath), "step,epoch,loss\n1,0,1\n2,0,2\n3,0,3\n4,0,40\n");
}

TEST(MetricsTable, AResumeFromTheStartDropsAll) {
  os::FakeFileSystem files;
  {
    auto table = MetricsTable::open(files, kPath);
    ASSERT_TRUE(table->add(1, 0, {{"loss", 1}}));
  }
  auto table = MetricsTable::open(files, kPath, 0);
  ASSERT_TRUE(table);
  EXPECT_TRUE(table->rows().empty());
}

TEST(MetricsTable, DropsALineThatWasCut) {
  os::FakeFileSystem files;
  ASSERT_TRUE(files.write_atomic(
      kPath, std::string_view("step,epoch,loss\n1,0,2\n2,0,0.12")));
  auto table = MetricsTable::open(files, kPath);
  ASSERT_TRUE(table) << table.error().to_string();
  ASSERT_TRUE(table->add(2, 0, {{"loss", 1}}));
  EXPECT_EQ(*files.read(kPath), "step,epoch,loss\n1,0,2\n2,0,1\n");
}

TEST(MetricsTable, RefusesAnotherFile) {
  os::FakeFileSystem files;
  for (const char* text :
       {"a,b\n1,2\n", "step,epoch,x\n1,0,red\n", "step,epoch\n1,2,3\n"}) {
    ASSERT_TRUE(files.write_atomic(kPath, std::string_view(text)));
    auto table = MetricsTable::open(files, kPath);
    ASSERT_FALSE(table) << text;
    EXPECT_EQ(table.error().code(), ErrorCode::kCorrupt);
    EXPECT_THAT(
        table.error().to_string(), testing::HasSubstr("/run/metrics.csv"));
  }
}

TEST(MetricsTable, GoesOnWhenThereIsSpaceAgain) {
  os::FakeFileSystem files;
  auto table = MetricsTable::open(files, kPath);
  ASSERT_TRUE(table->add(1, 0, {{"loss", 1}}));
  files.set_space(3);
  auto full = table->add(2, 0, {{"loss", 2}});
  ASSERT_FALSE(full);
  EXPECT_EQ(full.error().code(), ErrorCode::kNoSpace);
  files.set_space(1000);
  ASSERT_TRUE(table->add(3, 0, {{"loss", 3}}));
  EXPECT_EQ(*files.read(kPath), "step,epoch,loss\n1,0,1\n2,0,2\n3,0,3\n");
}

TEST(Csv, ReadsQuotes) {
  auto table =
      parse_csv("a,\"b \"\"x\"\"\",c\r\n1,\"two\nlines\",\n\n4,5,6", "f.csv");
  ASSERT_TRUE(table);
  EXPECT_THAT(table->header, testing::ElementsAre("a", "b \"x\"", "c"));
  ASSERT_EQ(table->rows.size(), 2U);
  EXPECT_THAT(table->rows[0], testing::ElementsAre("1", "two\nlines", ""));
  EXPECT_EQ(table->column("c"), 2);
  EXPECT_EQ(table->column("d"), -1);
}

TEST(Csv, ErrorsHaveTheLine) {
  auto table = parse_csv("a,b\n1,\"x\ny\"\n1,2,3\n", "f.csv");
  ASSERT_FALSE(table);
  EXPECT_THAT(table.error().message(), testing::StartsWith("f.csv:4:"));
  EXPECT_FALSE(parse_csv("", "f.csv"));
  EXPECT_FALSE(parse_csv("\n\n", "f.csv"));
}

TEST(Csv, TimingLineFollowsItsHeader) {
  wire::Iteration iteration;
  iteration.step = 3;
  iteration.epoch = 1;
  iteration.samples = 16;
  iteration.data = 0.001;
  iteration.compute = 0.2;
  iteration.communication = 0.03;
  iteration.wait = 0;
  iteration.total = 0.231;
  const std::string text =
      std::string(kTimingHeader) + "\n" + timing_line(2, iteration) + "\n";
  auto table = parse_csv(text, "timing.csv");
  ASSERT_TRUE(table);
  EXPECT_THAT(
      table->rows.at(0),
      testing::ElementsAre(
          "2", "3", "1", "16", "0.001", "0.2", "0.03", "0", "0.231"));
}

}  // namespace
}  // namespace lockstep::record
