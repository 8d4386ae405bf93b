#include "lockstep/forest/table_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "lockstep/collective/group_fixture.h"
#include "lockstep/forest/fit.h"
#include "lockstep/forest/load.h"
#include "lockstep/forest/made_table_test.h"
#include "lockstep/forest/model_file.h"
#include "lockstep/forest/predict.h"
#include "lockstep/forest/random.h"
#include "lockstep/forest/training_set.h"
#include "lockstep/record/temporary_folder_test.h"

namespace lockstep::forest {
namespace {

using collective::Mode;
using collective::run_group;
using testing::HasSubstr;

class TableTest : public testing::Test {
 protected:
  os::Path write(const std::string& name, const std::string& text) {
    const auto path = folder_.path() / name;
    EXPECT_TRUE(os::real_files().write_atomic(path, text));
    return path;
  }
  std::string open_error(const os::Path& path, const std::string& label) {
    const auto table = open_table(path, {.label = label});
    return table ? "" : table.error().to_string();
  }
  std::string load_error(const os::Path& path, const LoadOptions& options) {
    auto table = open_table(path, {});
    EXPECT_TRUE(table);
    auto group = collective::make_single();
    auto rows = load_rows(**table, options, *group);
    if (!rows) {
      return rows.error().to_string();
    }
    const auto set = make_training_set(std::move(*rows), 256, 1, *group);
    return set ? "" : set.error().to_string();
  }
  record::TemporaryFolder folder_;
};

TEST_F(TableTest, CsvGivesFeaturesAndLabels) {
  const auto path = write(
      "a.csv", "x,\"label\",y\r\n1.5,cat,-2\r\n+3e2,dog,\n\"4\",cat,NA\n\n");
  auto table = open_table(path, {});
  ASSERT_TRUE(table) << table.error().to_string();
  EXPECT_EQ((*table)->features(), (std::vector<std::string>{"x", "y"}));
  ASSERT_EQ((*table)->num_rows(), 3U);
  const auto block = (*table)->read(0, 10);
  ASSERT_TRUE(block) << block.error().to_string();
  EXPECT_EQ(block->texts, (std::vector<std::string>{"cat", "dog", "cat"}));
  EXPECT_EQ(block->features[2], 300);
  EXPECT_TRUE(std::isnan(block->features[3]));
  const auto last = (*table)->read(2, 1);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->features[0], 4);
}

TEST_F(TableTest, BareNaIsMissingAmongWordsAndQuotedNaIsAWord) {
  const auto path =
      write("a.csv", "NA,label\n1,cat\n2,NA\n3,\"NA\"\n\"4\",nan\n5,dog\n");
  auto table = open_table(path, {});
  ASSERT_TRUE(table) << table.error().to_string();
  EXPECT_EQ((*table)->features(), (std::vector<std::string>{"NA"}));
  const auto block = (*table)->read(0, 10);
  ASSERT_TRUE(block) << block.error().to_string();
  EXPECT_EQ(
      block->texts, (std::vector<std::string>{"cat", "", "NA", "", "dog"}));
}

TEST_F(TableTest, CsvOfASpreadsheetIsRead) {
  const auto path = write(
      "a.csv",
      "\xef\xbb\xbf\"x, in m\",label,\"a \"\"b\"\"\"\r\n"
      "1,\"red, or \"\"blue\"\"\",\"2\"\r\n"
      "3,green, \"\" \r\n"
      "5,,6\r\n\r\n \n\n");
  auto table = open_table(path, {});
  ASSERT_TRUE(table) << table.error().to_string();
  EXPECT_EQ(
      (*table)->features(), (std::vector<std::string>{"x, in m", "a \"b\""}));
  ASSERT_EQ((*table)->num_rows(), 3U);
  const auto block = (*table)->read(0, 10);
  ASSERT_TRUE(block) << block.error().to_string();
  EXPECT_EQ(
      block->texts,
      (std::vector<std::string>{"red, or \"blue\"", "green", ""}));
  EXPECT_EQ(block->features[1], 2);
  EXPECT_TRUE(std::isnan(block->features[3]));
  EXPECT_EQ(block->features[4], 5);
}

TEST_F(TableTest, CsvQuotesThatAreWrongAreNamed) {
  const auto read_error = [&](const std::string& row) {
    auto table = open_table(write("a.csv", "x,label\n1,2\n" + row), {});
    return table ? (*table)->read(0, 9).error().to_string() : "";
  };
  for (const char* row : {"1,\"a\n2,b\n", "1,\"a\"b\n", "\"1\" 2,a\n"}) {
    EXPECT_THAT(read_error(row), HasSubstr("a.csv:3: a quote")) << row;
  }
  EXPECT_THAT(read_error("1,\"a\",3\n"), HasSubstr("more columns"));
  EXPECT_THAT(read_error("\"1\"\n"), HasSubstr("1 columns"));
  EXPECT_THAT(
      open_error(write("b.csv", "x,\"label\n1,2\n"), "label"),
      HasSubstr("b.csv:1: a quote"));
}

TEST_F(TableTest, CsvColumnsThatStandTwiceAreRefused) {
  for (const char* header :
       {"x,label,y,label", "x,y,x,label", "x,\"x\",label"}) {
    const auto error = open_error(
        write("a.csv", std::string(header) + "\n1,2,3,4\n"), "label");
    EXPECT_THAT(error, HasSubstr("stands twice")) << header;
    EXPECT_THAT(error, HasSubstr(header[2] == 'l' ? "'label'" : "'x'"));
  }
}

TEST_F(TableTest, CsvLabelsAreWordsWhenOneIs) {
  for (const char* text :
       {"x,label\n1,1\n2,2\n3,other\n",
        "label,x\n1,1\n2,2\nother,3\n",
        "x,label,y,z\n1,1,0,0\n1,2,0,0\n1,other,0,0\n",
        "x,y,label,z\n1,0,1,0\n1,0,2,0\n1,0,other,0\n"}) {
    auto table = open_table(write("a.csv", text), {});
    ASSERT_TRUE(table) << table.error().to_string();
    EXPECT_TRUE((*table)->has_text()) << text;
    EXPECT_EQ((*table)->first_text(), 2U) << text;
    EXPECT_EQ(
        (*table)->read(0, 9)->texts,
        (std::vector<std::string>{"1", "2", "other"}));
  }
}

TEST_F(TableTest, CsvColumnsThatNobodyAsksForNeedNoNumbers) {
  const auto path = write("a.csv", "id,x,label\nabc,1,0\ndef,2,1\n");
  auto table = open_table(path, {.only = {"x"}});
  ASSERT_TRUE(table) << table.error().to_string();
  EXPECT_EQ((*table)->features(), std::vector<std::string>{"x"});
  EXPECT_EQ((*table)->read(0, 9)->features, (std::vector<float>{1, 2}));
  table = open_table(path, {.label = "id", .only = {"y"}});
  ASSERT_TRUE(table);
  EXPECT_THAT(
      select_features(std::move(*table), {"y"}).error().to_string(),
      HasSubstr("no column 'y'"));
}

TEST_F(TableTest, CsvErrorsNameThePlace) {
  const auto path = write("a.csv", "x,class,y\n1,0,2\n1,0,two\n");
  EXPECT_THAT(open_error(path, "clas"), HasSubstr("did you mean 'class'"));
  auto table = open_table(path, {.label = "class"});
  EXPECT_THAT(
      (*table)->read(0, 9).error().to_string(),
      HasSubstr("a.csv:3: column 'y': 'two' is not a number"));
  table = open_table(write("b.csv", "x,label\n1,2\n3\n"), {});
  EXPECT_THAT(
      (*table)->read(0, 9).error().to_string(), HasSubstr("b.csv:3: 1 col"));
  table = open_table(write("c.csv", "x,label\n1,2,3\n"), {});
  EXPECT_THAT(
      (*table)->read(0, 9).error().to_string(), HasSubstr("more columns"));
  EXPECT_THAT(open_error(write("d.csv", ""), "label"), HasSubstr("no header"));
  EXPECT_THAT(
      open_error(write("e.txt", "x"), "label"), HasSubstr("accepted: .csv"));
  EXPECT_THAT(
      open_error(folder_.path() / "none.csv", "label"), HasSubstr("no such"));
}

TEST_F(TableTest, CsvOfOtherSeparatorsIsNamed) {
  const std::pair<const char*, const char*> files[] = {
      {"x;y;label\n1,5;2;0\n", "a.csv:1: fields are separated by ';'"},
      {"\"x\";\"label\"\n1;2\n", "a.csv:1: fields are separated by ';'"},
      {"x\tlabel\r\n1\t0\r\n", "a.csv:1: fields are separated by tabs"},
      {"x,label\r1,0\r2,1\r", "a.csv: lines end with CR alone"}};
  for (const auto& [text, error] : files) {
    const auto path = write("a.csv", text);
    EXPECT_THAT(open_error(path, "label"), HasSubstr(error));
    EXPECT_THAT(open_error(path, ""), HasSubstr(error));
  }
  for (const char* text : {"x;y,label\n1,0\n", "\"x;y\",label\n1,0\n"}) {
    EXPECT_EQ(open_error(write("a.csv", text), "label"), "") << text;
  }
  EXPECT_TRUE(open_table(write("a.csv", "x;y\n1\n"), {"", true, {"x;y"}}));
  EXPECT_EQ(open_error(write("a.csv", "\"x;y\"\n1\n"), ""), "");
}

TEST_F(TableTest, BadRowsAreRefusedOrDropped) {
  const auto path = write("a.csv", "x,label\n1,a\nnan,b\n2,b\n3,a\n");
  EXPECT_THAT(
      load_error(path, {}), HasSubstr("a.csv:3: column 'x' has no number"));
  EXPECT_EQ(load_error(path, {.drop_missing = true}), "");
  EXPECT_THAT(
      load_error(path, {.drop_missing = true, .classes = {"a", "c"}}),
      HasSubstr("a.csv:4: label 'b' is not one of the classes; accepted: a"));
  EXPECT_THAT(
      load_error(path, {.regression = true, .drop_missing = true}),
      HasSubstr("labels are words"));
  EXPECT_THAT(
      load_error(write("b.csv", "x,label\n1,a\n"), {}),
      HasSubstr("1 rows to learn from"));
  EXPECT_THAT(
      load_error(write("c.csv", "x,label\n1,a\n2,a\n"), {}),
      HasSubstr("every label is 'a'"));
  EXPECT_THAT(
      load_error(write("d.csv", "x,label\n1,7\n2,7\n"), {.regression = true}),
      HasSubstr("every label is 7"));
}

TEST_F(TableTest, DamagedNpyIsAnError) {
  EXPECT_THAT(
      open_error(write("a.npy", "no numpy file"), "label"),
      HasSubstr("not an NPY file"));
  std::string header =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2), }\n";
  const auto file = [&](const std::string& text, size_t numbers) {
    std::string bytes("\x93NUMPY\x01\x00", 8);
    bytes.push_back(static_cast<char>(text.size()));
    bytes.push_back(0);
    return bytes + text + std::string(numbers * 4, '\0');
  };
  EXPECT_EQ(open_error(write("b.npy", file(header, 6)), "label"), "");
  EXPECT_THAT(
      open_error(write("b.npy", file(header, 5)), "label"),
      HasSubstr("cut off"));
  EXPECT_THAT(
      open_error(write("c.npy", file(header, 6)), "2"),
      HasSubstr("columns 0 to 1"));
  EXPECT_THAT(
      open_error(write("c.npy", file(header, 8)), "label"),
      HasSubstr("8 bytes behind the 3 x 2 numbers"));
  const auto shaped = [&](const std::string& shape, size_t numbers) {
    auto text = header;
    text.replace(text.find("(3, 2)"), 6, shape);
    return open_error(write("s.npy", file(text, numbers)), "label");
  };
  EXPECT_THAT(shaped("(-3, 2)", 6), HasSubstr("the shape (-3, 2) in its"));
  EXPECT_THAT(shaped("(3, -2)", 6), HasSubstr("none below 0"));
  EXPECT_THAT(shaped("(3, two)", 6), HasSubstr("none below 0"));
  EXPECT_THAT(shaped("(3, 2", 6), HasSubstr("none below 0"));
  EXPECT_THAT(shaped("(3, 0)", 0), HasSubstr("no columns"));
  EXPECT_THAT(shaped("(3, 2, 1)", 6), HasSubstr("3 axes; accepted: 1 or 2"));
  EXPECT_THAT(shaped("()", 1), HasSubstr("0 axes"));
  EXPECT_THAT(shaped("(3,)", 3), HasSubstr("no column but the label"));
  header.replace(header.find("<f4"), 3, "<c8");
  EXPECT_THAT(
      open_error(write("d.npy", file(header, 6)), "label"),
      HasSubstr("accepted: f2 f4"));
}

TEST_F(TableTest, FoldersAreOneTable) {
  write("a.csv", "x,label\n1,0\n2,1\n");
  write("b.csv", "x,label\n");
  write("c.csv", "x,label\n3,1\n");
  auto table = open_table(folder_.path(), {});
  ASSERT_TRUE(table) << table.error().to_string();
  EXPECT_EQ((*table)->num_rows(), 3U);
  const auto block = (*table)->read(1, 5);
  EXPECT_EQ(block->features, (std::vector<float>{2, 3}));
  write("d.csv", "z,label\n3,1\n");
  EXPECT_THAT(open_error(folder_.path(), "label"), HasSubstr("columns differ"));
  write("d.csv", "x,label\n3,red\n");
  EXPECT_THAT(
      open_error(folder_.path(), "label"), HasSubstr("its labels are words"));
}

TEST_F(TableTest, AnEmptyFileOfAFolderHasNoKindOfLabels) {
  write("a.csv", "x,label\n");
  write("b.csv", "x,label\n1,red\n");
  write("c.csv", "x,label\n");
  auto table = open_table(folder_.path(), {});
  ASSERT_TRUE(table) << table.error().to_string();
  EXPECT_TRUE((*table)->has_text());
  EXPECT_EQ((*table)->read(0, 9)->texts, std::vector<std::string>{"red"});
}

TEST_F(TableTest, LabelsOfAFolderThatNobodyNeedsMayDiffer) {
  write("a.csv", "x,label\n1,red\n2,green\n");
  write("b.csv", "x\n3\n");
  write("c.csv", "x,label\n4,7\n");
  auto table = open_table(folder_.path(), {.label_required = false});
  ASSERT_TRUE(table) << table.error().to_string();
  EXPECT_FALSE((*table)->has_label());
  EXPECT_FALSE((*table)->has_text());
  const auto block = (*table)->read(0, 9);
  ASSERT_TRUE(block) << block.error().to_string();
  EXPECT_EQ(block->features, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_TRUE(block->texts.empty() && block->numbers.empty());
  EXPECT_THAT(open_error(folder_.path(), "label"), HasSubstr("no such column"));
}

TEST_F(TableTest, RanksReadTheSameRowsAndEdges) {
  std::string text = "x,y,label\n";
  for (int i = 0; i < 500; ++i) {
    text += std::to_string(i * 37 % 211) + "," +
            (i % 50 == 3 ? std::string() : std::to_string(i % 17)) + ",c" +
            std::to_string(i % 3) + "\n";
  }
  const auto path = write("a.csv", text);
  const LoadOptions options = {
      .drop_missing = true, .part = Part::kTraining, .held_out = .25};
  const auto load = [&](collective::Communicator& group) {
    auto table = open_table(path, {});
    auto rows = load_rows(**table, options, group);
    auto set = make_training_set(std::move(*rows), 32, 1, group);
    set->table = gather_table(set->table, group);
    return std::move(*set);
  };
  auto single = collective::make_single();
  const auto one = load(*single);
  EXPECT_GT(one.table.num_rows, 340U);
  EXPECT_LT(one.table.num_rows, 400U);
  run_group({Mode::kThreads, 3}, [&](collective::Communicator& group) {
    const auto set = load(group);
    EXPECT_EQ(set.table.bins, one.table.bins);
    EXPECT_EQ(set.table.targets, one.table.targets);
    EXPECT_EQ(set.forest.binning.edges(0), one.forest.binning.edges(0));
    EXPECT_EQ(set.forest.target.classes, one.forest.target.classes);
  });
}

TEST_F(TableTest, AnErrorOfOneRankIsAnErrorOfAll) {
  const auto path = write("a.csv", "x,label\n1,a\n2,b\n3,a\nbad,b\n");
  run_group({Mode::kThreads, 2}, [&](collective::Communicator& group) {
    auto table = open_table(path, {});
    const auto rows = load_rows(**table, {}, group);
    ASSERT_FALSE(rows);
    EXPECT_THAT(rows.error().to_string(), HasSubstr("a.csv:5"));
  });
}

// Hosts with disks of their own may have different files of one name.
TEST_F(TableTest, AnotherTableOnOneRankIsAnErrorOfAll) {
  const auto own = write("a.csv", "x,y,label\n1,2,a\n2,3,b\n3,4,a\n");
  const std::pair<const char*, const char*> others[] = {
      {"x,label\n1,a\n2,b\n3,a\n", "1 features in"},
      {"y,x,label\n1,2,a\n2,3,b\n3,4,a\n", "feature 1 is 'y' in"},
      {"x,y,label\n1,2,1\n2,3,2\n3,4,1\n", "labels that are numbers in"},
      {"x,y,label\n1,2,a\n2,3,b\n", "2 rows in"}};
  for (const auto& [text, difference] : others) {
    const auto other = write("b.csv", text);
    run_group({Mode::kThreads, 3}, [&](collective::Communicator& group) {
      const auto& path = group.rank() == 2 ? other : own;
      auto table = open_table(path, {});
      const auto rows = load_rows(**table, {.table = path.string()}, group);
      ASSERT_FALSE(rows);
      EXPECT_THAT(
          rows.error().to_string(),
          testing::AllOf(
              HasSubstr("rank 2 sees another table than rank 0"),
              HasSubstr(difference + std::string(" ") + other.string()),
              HasSubstr("in " + own.string())));
    });
  }
}

TEST_F(TableTest, ModelsComeBackAsTheyWere) {
  const auto made = make_table(300, 4, 3);
  auto group = collective::make_single();
  Forest forest;
  forest.features = {"a", "b", "c, d", "e"};
  forest.target = made.target;
  forest.binning = Binning({{1, 2.5}, {}, {3}, {4, 5, 6}});
  forest.trees = grow_trees(made.table, made.target, {.trees = 3}, *group);
  const auto path = folder_.path() / "m.safetensors";
  ASSERT_TRUE(write_model(os::real_files(), path, forest, {{"k", "v"}}));
  const auto read = read_model(path);
  ASSERT_TRUE(read) << read.error().to_string();
  EXPECT_EQ(read->trees, forest.trees);
  EXPECT_EQ(read->features, forest.features);
  EXPECT_EQ(read->target.classes, forest.target.classes);
  EXPECT_EQ(read->binning.edges(3), forest.binning.edges(3));
}

// A byte is changed at a time: the file is refused, or gives what can be
// predicted with. Half of them are links, where a wrong one hurts most.
TEST_F(TableTest, NoDamagedByteOfAModelIsACrash) {
  const auto made = make_table(400, 4, 3);
  auto group = collective::make_single();
  Forest forest;
  forest.features = {"a", "b", "c", "d"};
  forest.target = made.target;
  forest.binning = Binning(std::vector<std::vector<float>>(4, {1, 2}));
  forest.trees = grow_trees(made.table, made.target, {.trees = 2}, *group);
  const auto path = folder_.path() / "m.safetensors";
  ASSERT_TRUE(write_model(os::real_files(), path, forest, {}));
  const auto whole = *os::real_files().read(path);
  size_t links = 0;
  size_t link_bytes = 0;
  {
    const auto file = record::SafetensorsFile::open(path);
    const auto bytes = file->find("node.link")->bytes;
    link_bytes = bytes.size();
    const auto* begin = reinterpret_cast<const char*>(bytes.data());
    links = whole.find(std::string(begin, link_bytes));
    ASSERT_NE(links, std::string::npos);
  }
  uint64_t draw = 1;
  const auto below = [&](size_t limit) {
    draw = mix(draw + 1);
    return draw % limit;
  };
  int refused = 0;
  for (int i = 0; i < 500; ++i) {
    auto bytes = whole;
    const size_t at =
        i % 2 == 0 ? below(bytes.size()) : links + below(link_bytes);
    bytes[at] = static_cast<char>(below(256));
    std::ofstream(path, std::ios::binary) << bytes;  // no sync: many files
    const auto model = read_model(path);
    if (!model) {
      ++refused;
      continue;
    }
    const std::vector<float> rows(64 * model->features.size(), 1.5F);
    std::vector<float> values(64 * static_cast<size_t>(model->value_width()));
    Predictor(*model).predict(rows, values.data(), 1);
  }
  EXPECT_GT(refused, 100);
}

TEST_F(TableTest, DamagedModelsAreErrors) {
  const auto made = make_table(100, 4, 2);
  auto group = collective::make_single();
  Forest forest;
  forest.features = {"a", "b", "c", "d"};
  forest.target = made.target;
  forest.binning = Binning(std::vector<std::vector<float>>(4));
  forest.trees = grow_trees(made.table, made.target, {.trees = 1}, *group);
  const auto path = folder_.path() / "m.safetensors";
  const auto expect_broken = [&](const Forest& broken) {
    ASSERT_TRUE(write_model(os::real_files(), path, broken, {}));
    EXPECT_FALSE(read_model(path));
  };
  auto loop = forest;
  loop.trees[0].nodes[0].link = 0;
  expect_broken(loop);
  auto parents = forest;  // two splits with the same children
  auto& nodes = parents.trees[0].nodes;
  ASSERT_GT(nodes.size(), 4U);
  const auto second =
      std::find_if(nodes.begin() + 1, nodes.end(), [](const Node& node) {
        return node.feature != kLeaf;
      });
  ASSERT_NE(second, nodes.end());
  nodes[0].link = second->link;
  expect_broken(parents);
  auto feature = forest;
  feature.trees[0].nodes[0].feature = 4;
  expect_broken(feature);
  auto values = forest;
  values.trees[0].values.resize(2);
  expect_broken(values);
  ASSERT_TRUE(
      os::real_files().write_atomic(path, "not a model at all, only text"));
  EXPECT_FALSE(read_model(path));
}

}  // namespace
}  // namespace lockstep::forest
