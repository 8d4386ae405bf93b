#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/commands/sweep_journal.h"
#include "lockstep/commands/sweep_plan.h"
#include "lockstep/commands/sweep_table.h"

namespace lockstep::commands {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Sweep : public testing::Test {
 protected:
  void SetUp() override {
    std::string form =
        (std::filesystem::temp_directory_path() / "sweep-XXXXXX").string();
    ASSERT_NE(::mkdtemp(form.data()), nullptr);
    folder_ = form;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  launch::Job job(const std::string& yaml) {
    const os::Path file = folder_ / "job.yaml";
    std::ofstream(file) << yaml;
    auto loaded = launch::load_job(file.string(), {}, {});
    EXPECT_TRUE(loaded) << loaded.error().to_string();
    return *loaded;
  }

  SweepJournal journal(std::map<std::string, std::string> identity = {}) {
    auto opened = SweepJournal::open(folder_ / "out", identity, false);
    EXPECT_TRUE(opened) << opened.error().to_string();
    return std::move(*opened);
  }

  os::Path folder_;
};

std::vector<std::string> stems(const std::vector<Configuration>& grid) {
  std::vector<std::string> names;
  for (const Configuration& one : grid) {
    names.push_back(one.stem());
  }
  return names;
}

Repeat repeat(const std::string& stem, double total, size_t ranks) {
  Repeat one;
  one.stem = stem;
  one.done = true;
  one.run = "run-" + stem + std::to_string(total);
  one.total = total;
  one.ranks.assign(ranks, total / 2);
  one.sources.assign(ranks, "epoch");
  return one;
}

TEST_F(Sweep, GridHasTheBaselineFirst) {
  SweepSpec spec;
  spec.nodes = {2};
  spec.procs = {1, 2};
  spec.batch_sizes = {"16", "32"};
  const auto grid = make_grid(spec);
  ASSERT_TRUE(grid);
  EXPECT_THAT(
      stems(*grid),
      ElementsAre(
          "nnode-1_nproc-1_batch_size-16",
          "nnode-1_nproc-1_batch_size-32",
          "nnode-2_nproc-1_batch_size-16",
          "nnode-2_nproc-2_batch_size-16",
          "nnode-2_nproc-1_batch_size-32",
          "nnode-2_nproc-2_batch_size-32"));
  EXPECT_EQ((*grid)[3].rank_batch, "16");
  EXPECT_EQ((*grid)[3].baseline_stem(), (*grid)[0].stem());
}

TEST_F(Sweep, BaselineIsNotRunTwice) {
  SweepSpec spec;
  spec.nodes = {1};
  spec.procs = {1, 2, 4};
  EXPECT_THAT(
      stems(*make_grid(spec)),
      ElementsAre(
          "nnode-1_nproc-1_batch_size-0",
          "nnode-1_nproc-2_batch_size-0",
          "nnode-1_nproc-4_batch_size-0"));
}

TEST_F(Sweep, OtherKeysStandInTheName) {
  SweepSpec spec;
  spec.procs = {2};
  spec.batch_sizes = {"16"};
  spec.keys = {{"optim.lr", {"1e-3", "2e-3"}}, {"data.root", {"a/b", "a-b"}}};
  const auto grid = make_grid(spec);
  const auto names = stems(*grid);
  EXPECT_EQ(names.size(), 8U);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), 8U);
  EXPECT_EQ(
      names[1], "nnode-1_nproc-1_batch_size-16_optim.lr-1e-3_data.root-a-b");
  EXPECT_THAT(
      names[0],
      StartsWith("nnode-1_nproc-1_batch_size-16_optim.lr-1e-3_data.root-a-b-"));
}

TEST_F(Sweep, NamesFitAFileSystemAndStayApart) {
  SweepSpec spec;
  const std::string text(400, 'x');
  spec.keys = {{"key", {text + "1", text + "2"}}};
  const auto names = stems(*make_grid(spec));
  ASSERT_EQ(names.size(), 2U);
  EXPECT_LT(names[0].size(), 200U);
  EXPECT_NE(names[0], names[1]);
}

TEST_F(Sweep, StrongScalingDividesTheBatch) {
  SweepSpec spec;
  spec.scaling = Scaling::kStrong;
  spec.procs = {1, 2, 4};
  spec.batch_sizes = {"64"};
  const auto grid = make_grid(spec);
  ASSERT_TRUE(grid);
  EXPECT_EQ((*grid)[0].rank_batch, "64");
  EXPECT_EQ((*grid)[2].rank_batch, "16");
  EXPECT_EQ((*grid)[2].stem(), "nnode-1_nproc-4_batch_size-64");
  spec.batch_sizes = {"10"};
  const auto refused = make_grid(spec);
  ASSERT_FALSE(refused);
  EXPECT_THAT(
      refused.error().to_string(),
      HasSubstr("a batch of 10 does not divide by 4 ranks"));
  spec.batch_sizes = {"auto"};
  EXPECT_FALSE(make_grid(spec));
}

TEST_F(Sweep, CountsAreReadAndRefused) {
  EXPECT_THAT(*parse_counts("1,2,4,2", "--procs"), ElementsAre(1, 2, 4));
  for (const char* bad : {"", "0", "1,", "a", "1,-2", "1.5", "999999999"}) {
    const auto counts = parse_counts(bad, "--procs");
    ASSERT_FALSE(counts) << bad;
    EXPECT_THAT(counts.error().message(), HasSubstr("--procs"));
  }
}

TEST_F(Sweep, KeysArePartedAtOuterCommas) {
  EXPECT_THAT(
      parse_sweep_key("optim.lr=1e-3,2e-3,1e-3")->values,
      ElementsAre("1e-3", "2e-3"));
  EXPECT_THAT(
      parse_sweep_key("a=[1,2],[3,4]")->values, ElementsAre("[1,2]", "[3,4]"));
  EXPECT_THAT(parse_sweep_key("a='x,y',z")->values, ElementsAre("'x,y'", "z"));
  EXPECT_THAT(parse_sweep_key("a=")->values, ElementsAre(""));
  EXPECT_FALSE(parse_sweep_key("a"));
  EXPECT_FALSE(parse_sweep_key("=3"));
  EXPECT_FALSE(parse_sweep_key("a=1,,2"));
}

TEST_F(Sweep, TrainerGetsItsKeys) {
  const auto train = job("train: {recipe: vit}\n");
  Configuration one{1, 2, "32", "16", {{"optim.lr", "1e-3"}}};
  EXPECT_THAT(
      *run_words(train, one, {}),
      ElementsAre("optim.lr=1e-3", "data.batch_size=16"));
  EXPECT_EQ(batch_key(train), "data.batch_size");
  EXPECT_FALSE(takes_place(train, "optim.lr"));
}

TEST_F(Sweep, OtherProgramsGetValuesInTheirPlaces) {
  const auto text = job(
      "run: 'python3 t.py --lr {lr} --batch {batch_size} ${batch_size} {x}'\n"
      "envs: {B: 'n{batch_size}', OTHER: fixed}\n");
  EXPECT_EQ(batch_key(text), "batch_size");
  EXPECT_TRUE(takes_place(text, "lr"));
  EXPECT_FALSE(takes_place(text, "envs.OTHER"));
  Configuration one{1, 1, "8", "8", {{"envs.OTHER", "o"}}};
  EXPECT_THAT(
      *run_words(text, one, {{"lr", "0.1"}}),
      ElementsAre(
          "envs.OTHER=o",
          "run=python3 t.py --lr 0.1 --batch 8 ${batch_size} {x}",
          "envs.B=n8"));
  const auto list = job("run: [./prog, '{size}', plain]\n");
  Configuration two{1, 1, "0", "", {{"size", "a b"}}};
  const auto words = run_words(list, two, {});
  ASSERT_TRUE(words);
  EXPECT_THAT(*words, ElementsAre(R"(run=["./prog", a b, plain])"));
}

TEST_F(Sweep, AKeyWithoutAPlaceIsRefused) {
  const auto text = job("run: python3 t.py\n");
  Configuration one{1, 1, "8", "8", {}};
  const auto words = run_words(text, one, {});
  ASSERT_FALSE(words);
  EXPECT_THAT(words.error().to_string(), HasSubstr("{batch_size}"));
}

TEST_F(Sweep, JournalKeepsRepeatsAcrossProcesses) {
  {
    SweepJournal first = journal();
    ASSERT_TRUE(first.add(repeat("a", 2, 1)));
    ASSERT_TRUE(first.add(repeat("a", 3, 1)));
    Repeat failed = repeat("a", 1, 1);
    failed.done = false;
    failed.exit_code = 1;
    failed.reason = "rank 0 failed, \"badly\"\n";
    failed.dollars = 0.5;
    ASSERT_TRUE(first.add(failed));
    Repeat stopped = repeat("a", 1, 1);
    stopped.done = false;
    stopped.exit_code = Repeat::kInterruptedCode;
    ASSERT_TRUE(first.add(stopped));
  }
  const SweepJournal second = journal();
  ASSERT_EQ(second.done("a").size(), 2U);
  EXPECT_EQ(second.done("a")[1]->total, 3);
  EXPECT_EQ(second.failures("a"), 1U);
  EXPECT_EQ(second.dollars(), 0.5);
  EXPECT_EQ(second.skipped(), 0);
  EXPECT_EQ(second.repeats()[2].reason, "rank 0 failed, \"badly\"\n");
}

TEST_F(Sweep, HalfALineNeverCounts) {
  {
    SweepJournal first = journal();
    ASSERT_TRUE(first.add(repeat("a", 2, 1)));
  }
  const os::Path file = folder_ / "out" / "repeats.jsonl";
  const std::string whole = to_json(repeat("a", 5, 1));
  for (const std::string& broken :
       {whole,  // without its newline
        whole.substr(0, whole.size() / 2),
        std::string("{}\n"),
        std::string("[1,2]\nnot json\n"),
        std::string("{\"v\":1,\"configuration\":3}\n"),
        std::string("\xff\xfe\n")}) {
    const std::string before = *os::real_files().read(file);
    std::ofstream(file, std::ios::app) << broken;
    {
      SweepJournal again = journal();
      EXPECT_EQ(again.done("a").size(), 1U) << broken;
      EXPECT_GT(again.skipped(), 0) << broken;
    }
    std::ofstream(file, std::ios::trunc) << before;
  }
}

TEST_F(Sweep, ARecordWithoutNumbersNeverCounts) {
  Repeat empty;
  empty.stem = "a";
  empty.done = true;
  EXPECT_FALSE(parse_repeat(to_json(empty)));
  const auto back = parse_repeat(to_json(repeat("a", 1.25, 2)));
  ASSERT_TRUE(back);
  EXPECT_THAT(back->ranks, ElementsAre(0.625, 0.625));
}

TEST_F(Sweep, AnotherSweepsFolderIsRefused) {
  { const SweepJournal first = journal({{"scaling", "weak"}}); }
  const auto other =
      SweepJournal::open(folder_ / "out", {{"scaling", "strong"}}, false);
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().to_string(), HasSubstr("another 'scaling'"));
  EXPECT_THAT(other.error().to_string(), HasSubstr("--out"));
}

TEST_F(Sweep, OneSweepAtATimeInAFolder) {
  const SweepJournal first = journal();
  const auto second = SweepJournal::open(folder_ / "out", {}, false);
  ASSERT_FALSE(second);
  EXPECT_THAT(second.error().message(), HasSubstr("another sweep works"));
}

TEST_F(Sweep, ADryRunMakesNothing) {
  const auto looked = SweepJournal::open(folder_ / "none", {}, true);
  ASSERT_TRUE(looked);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "none"));
}

class Results : public Sweep {
 protected:
  void SetUp() override {
    Sweep::SetUp();
    SweepSpec spec;
    spec.procs = {1, 2};
    spec.batch_sizes = {"16"};
    grid_ = *make_grid(spec);
  }
  std::vector<Configuration> grid_;
};

TEST_F(Results, SpeedUpAndEfficiency) {
  SweepJournal done = journal();
  for (const double total : {10.0, 11.0, 12.0}) {
    ASSERT_TRUE(done.add(repeat(grid_[0].stem(), total, 1)));
  }
  for (const double total : {5.0, 5.5, 6.0}) {
    ASSERT_TRUE(done.add(repeat(grid_[1].stem(), total, 2)));
  }
  Repeat failed = repeat(grid_[1].stem(), 1000, 2);
  failed.done = false;
  failed.exit_code = 1;
  failed.reason = "rank 1, killed";
  ASSERT_TRUE(done.add(failed));
  const SweepTable table = make_sweep_table(grid_, done);
  EXPECT_EQ(
      speedup_csv(table),
      "nodes,procs,batch_size,mean,ci95,speedup,efficiency\n"
      "1,1,16,11,2.48413771,1,1\n"
      "1,2,16,5.5,1.24206886,2,1\n");
  EXPECT_EQ(
      repeats_csv(table.points[1]),
      "total,t0,t1\n5,2.5,2.5\n5.5,2.75,2.75\n6,3,3\n");
  ASSERT_TRUE(table.points[1].speedup_interval);
  EXPECT_LT(table.points[1].speedup_interval->low, 2);
  EXPECT_GT(table.points[1].speedup_interval->high, 2);
  EXPECT_FALSE(table.points[0].speedup_interval);
  EXPECT_THAT(failures_csv(table), HasSubstr(",1,\"rank 1, killed\","));
  EXPECT_THAT(summary_markdown(table), HasSubstr("rank 1, killed"));
  const auto json = sweep_json(table);
  EXPECT_EQ(json["configurations"][1]["failures"], 1);
  EXPECT_EQ(json["configurations"][1]["speedup"], 2);
}

TEST_F(Results, OneRepeatHasNoIntervalAndNoBaselineNoSpeedUp) {
  SweepJournal done = journal();
  ASSERT_TRUE(done.add(repeat(grid_[1].stem(), 5, 2)));
  const SweepTable table = make_sweep_table(grid_, done);
  EXPECT_EQ(
      speedup_csv(table),
      "nodes,procs,batch_size,mean,ci95,speedup,efficiency\n"
      "1,1,16,,,,\n"
      "1,2,16,5,,,\n");
  EXPECT_THAT(speedup_svg(table), HasSubstr("ideal"));
}

TEST_F(Results, WorkThatGrowsWithTheRanksCounts) {
  SweepJournal done = journal();
  Repeat alone = repeat(grid_[0].stem(), 10, 1);
  alone.samples = 1000;
  ASSERT_TRUE(done.add(alone));
  Repeat both = repeat(grid_[1].stem(), 10, 2);
  both.samples = 2000;
  ASSERT_TRUE(done.add(both));
  const SweepTable table = make_sweep_table(grid_, done);
  EXPECT_EQ(*table.points[1].speedup, 2);
  EXPECT_EQ(*table.points[1].efficiency, 1);
}

TEST_F(Results, PaddingOfADataSetIsNoWork) {
  SweepJournal done = journal();
  Repeat alone = repeat(grid_[0].stem(), 10, 1);
  alone.samples = 1001;
  ASSERT_TRUE(done.add(alone));
  Repeat both = repeat(grid_[1].stem(), 5, 2);
  both.samples = 1002;
  ASSERT_TRUE(done.add(both));
  EXPECT_EQ(*make_sweep_table(grid_, done).points[1].speedup, 2);
}

TEST_F(Results, FurtherKeysAreFurtherColumns) {
  SweepSpec spec;
  spec.keys = {{"optim.lr", {"1e-3", "2e-3"}}};
  const auto grid = *make_grid(spec);
  SweepJournal done = journal();
  ASSERT_TRUE(done.add(repeat(grid[1].stem(), 4, 1)));
  const SweepTable table = make_sweep_table(grid, done);
  EXPECT_EQ(
      speedup_csv(table),
      "nodes,procs,batch_size,mean,ci95,speedup,efficiency,optim.lr\n"
      "1,1,0,,,,,1e-3\n"
      "1,1,0,4,,1,1,2e-3\n");
}

TEST_F(Results, FilesAreWrittenWhole) {
  SweepJournal done = journal();
  ASSERT_TRUE(done.add(repeat(grid_[0].stem(), 2, 1)));
  SweepTable table = make_sweep_table(grid_, done);
  table.name = "job";
  table.repeat = 1;
  ASSERT_TRUE(write_sweep_files(table, done.folder()));
  const auto names = *os::real_files().list(done.folder());
  EXPECT_THAT(
      names,
      testing::IsSupersetOf(
          {"failures.csv",
           "nnode-1_nproc-1_batch_size-16.csv",
           "speedup.csv",
           "speedup.svg",
           "summary.md"}));
  EXPECT_THAT(
      names, Not(testing::Contains("nnode-1_nproc-2_batch_size-16.csv")));
}

}  // namespace
}  // namespace lockstep::commands
