#include "lockstep/config/node.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

namespace lockstep::config {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string error_of(std::string_view text) {
  const auto parsed = parse_yaml(text, "job.yaml");
  return parsed ? "no error: " + to_yaml(*parsed) : parsed.error().to_string();
}

Node parsed(std::string_view text) {
  auto node = parse_yaml(text, "job.yaml");
  EXPECT_TRUE(node) << (node ? "" : node.error().to_string());
  return node ? std::move(*node) : Node();
}

const Node& at(const Node& node, const std::string& dotted) {
  static const Node kNone;
  const Node* found = &node;
  size_t start = 0;
  while (found != nullptr && start <= dotted.size()) {
    const size_t dot = std::min(dotted.find('.', start), dotted.size());
    found = found->find(dotted.substr(start, dot - start));
    start = dot + 1;
  }
  EXPECT_NE(found, nullptr) << dotted;
  return found == nullptr ? kNone : *found;
}

TEST(WithHome, IsOfTextsThatBeginWithIt) {
  const Node node =
      parse_yaml("a: ~/x\nb: [~/y, z/~/w]\nc: ~\nd: ~user/x\n", "f").value();
  EXPECT_EQ(
      to_flow_yaml(with_home(node, "/h")),
      "{a: /h/x, b: [/h/y, \"z/~/w\"], c: null, d: \"~user/x\"}");
  EXPECT_EQ(with_home(node, "/h").find("a")->place().line, 1);
  EXPECT_EQ(to_flow_yaml(with_home(node, "")), to_flow_yaml(node));
}

TEST(ParseYaml, KeepsOrderKindsAndLines) {
  const Node node = parsed("b: 1\na:\n  - x\n  - {k: v}\nc:\n");
  ASSERT_EQ(node.entries().size(), 3u);
  EXPECT_EQ(node.entries()[0].first, "b");
  EXPECT_EQ(at(node, "b").text(), "1");
  EXPECT_EQ(at(node, "b").place().to_string(), "job.yaml:1");
  EXPECT_EQ(at(node, "a").items().size(), 2u);
  EXPECT_EQ(at(node, "a").items()[1].find("k")->text(), "v");
  EXPECT_EQ(at(node, "a").items()[1].place().line, 4);
  EXPECT_EQ(at(node, "c").kind(), Node::Kind::kNull);
  EXPECT_EQ(at(node, "c").place().line, 5);
}

TEST(ParseYaml, AValueHasTheLineOfItsKey) {
  const Node node = parsed(
      "map:\n"
      "  # why\n"
      "\n"
      "  a: 1\n"
      "list:\n"
      "\n"
      "  - x\n"
      "  - {k: v}\n"
      "text:\n"
      "  of the next line\n"
      "block: |\n"
      "  x\n"
      "known: &known {b: 1}\n"
      "alias: *known\n"
      "flow: [x,\n"
      "  y]\n");
  const auto line = [&](const std::string& key) {
    return at(node, key).place().line;
  };
  EXPECT_EQ(line("map"), 1);
  EXPECT_EQ(line("map.a"), 4);
  EXPECT_EQ(line("list"), 5);
  EXPECT_EQ(at(node, "list").items()[0].place().line, 7);
  EXPECT_EQ(at(node, "list").items()[1].place().line, 8);
  EXPECT_EQ(line("text"), 9);
  EXPECT_EQ(line("block"), 11);
  EXPECT_EQ(line("known"), 13);
  EXPECT_EQ(line("alias"), 14);
  EXPECT_EQ(line("alias.b"), 13);
  EXPECT_EQ(line("flow"), 15);
  EXPECT_EQ(at(node, "flow").items()[1].place().line, 16);
}

TEST(ParseYaml, EmptyTextIsNull) {
  EXPECT_EQ(parsed("").kind(), Node::Kind::kNull);
  EXPECT_EQ(parsed("# only a comment\n").kind(), Node::Kind::kNull);
}

TEST(ParseYaml, NullWordsOnlyWithoutQuotes) {
  const Node node = parsed("a: null\nb: ~\nc: 'null'\nd: \"\"\n");
  EXPECT_EQ(at(node, "a").kind(), Node::Kind::kNull);
  EXPECT_EQ(at(node, "b").kind(), Node::Kind::kNull);
  EXPECT_EQ(at(node, "c").text(), "null");
  EXPECT_EQ(at(node, "c").kind(), Node::Kind::kScalar);
  EXPECT_EQ(at(node, "d").kind(), Node::Kind::kScalar);
}

TEST(ParseYaml, BlockTextKeepsItsEnd) {
  EXPECT_EQ(at(parsed("a: |\n  x\n  y\n"), "a").text(), "x\ny\n");
  EXPECT_EQ(at(parsed("a: |\n  x"), "a").text(), "x\n");
  EXPECT_EQ(at(parsed("a: |-\n  x\n"), "a").text(), "x");
  EXPECT_EQ(at(parsed("a: >\n  x\n  y\n"), "a").text(), "x y\n");
}

TEST(ParseYaml, DottedKeysNestAndJoin) {
  const Node node = parsed("optim.lr: 1\noptim.a.b: 2\noptim.a.c: 3\n");
  EXPECT_EQ(at(node, "optim.lr").text(), "1");
  EXPECT_EQ(at(node, "optim.a.b").text(), "2");
  EXPECT_EQ(at(node, "optim.a.c").text(), "3");
  const Node quoted = parsed("\"a.b\": 1\n");
  EXPECT_EQ(quoted.entries()[0].first, "a.b");
}

TEST(ParseYaml, DuplicateKeysAreRefused) {
  EXPECT_EQ(
      error_of("a: 1\nb: 2\na: 3\n"),
      "job.yaml:3: key 'a' is given twice, first at job.yaml:1");
  EXPECT_THAT(
      error_of("name:\n  a: 1\nname: [x]\n"),
      StartsWith("job.yaml:3: key 'name' is given twice, first at job.yaml:1"));
  EXPECT_EQ(
      error_of("optim: {lr: 1}\noptim.lr: 2\n"),
      "job.yaml:2: key 'optim.lr' is given twice, first at job.yaml:1");
  EXPECT_EQ(
      error_of("data: mnist\ndata.limit: 2\n"),
      "job.yaml:2: key 'data' is given twice, first at job.yaml:1; a choice "
      "beside its keys is 'data.name: mnist'");
  EXPECT_THAT(
      error_of("data.limit: 2\ndata: mnist\n"),
      HasSubstr("is 'data.name: mnist'"));
}

TEST(ParseYaml, BadSyntaxNamesTheLine) {
  EXPECT_THAT(error_of("a: 1\nb: 'x\n"), StartsWith("job.yaml:"));
  EXPECT_THAT(error_of("a: 1\nb: \"x\n\n"), StartsWith("job.yaml:"));
  EXPECT_THAT(error_of("b: \"x"), StartsWith("job.yaml:"));
  EXPECT_THAT(error_of("a:\n\tb: 1\n"), StartsWith("job.yaml:2: "));
  EXPECT_THAT(error_of("a: [1, 2\n"), StartsWith("job.yaml:"));
  EXPECT_THAT(error_of("a: b: c\n"), StartsWith("job.yaml:1: "));
  EXPECT_THAT(error_of("a: *nobody\n"), StartsWith("job.yaml:1: "));
  EXPECT_THAT(error_of("? [a]\n: 1\n"), HasSubstr("key must be plain text"));
  EXPECT_THAT(error_of("a..b: 1\n"), HasSubstr("empty part"));
  EXPECT_THAT(error_of("'': 1\n"), HasSubstr("a key is empty"));
  EXPECT_THAT(error_of("a: 1\n---\nb: 1\n"), HasSubstr("second document"));
}

TEST(ParseYaml, BytesThatAreNotTextAreRefused) {
  EXPECT_EQ(
      error_of(std::string_view("a: 1\nb: \0x", 9)),
      "job.yaml:2: byte 0x00 is not text; this is not YAML");
  EXPECT_THAT(error_of("a: \xff\xfe"), HasSubstr("byte 0xff is not text"));
  EXPECT_THAT(
      error_of(
          "\x7f"
          "ELF"),
      HasSubstr("byte 0x7f"));
  EXPECT_EQ(at(parsed("a: \xc3\xa9\n"), "a").text(), "\xc3\xa9");
}

TEST(ParseYaml, EscapesAreUtf8) {
  const Node node = parsed("a: \"x\\_y\\Nz\\x41\\u00e9\\L\"\n");
  EXPECT_EQ(at(node, "a").text(), "x\xc2\xa0y\xc2\x85zA\xc3\xa9\xe2\x80\xa8");
  EXPECT_EQ(at(parsed(to_yaml(node)), "a").text(), at(node, "a").text());
}

TEST(ParseYaml, DeepNestingIsRefused) {
  EXPECT_THAT(
      error_of("a: " + std::string(65, '[') + std::string(65, ']')),
      HasSubstr("nested deeper than 64 levels"));
  // Deep enough to exhaust a recursive parser's stack.
  EXPECT_THAT(error_of(std::string(20'000, '[')), StartsWith("job.yaml:"));
  EXPECT_THAT(error_of(std::string(20'000, '{')), StartsWith("job.yaml:"));
  std::string dashes;
  for (int i = 0; i < 10'000; ++i) {
    dashes += "- ";
  }
  EXPECT_THAT(error_of(dashes), StartsWith("job.yaml:"));
  std::string dotted = "a";
  for (int i = 0; i < 70; ++i) {
    dotted += ".a";
  }
  EXPECT_THAT(error_of(dotted + ": 1"), HasSubstr("nested deeper"));
  // Each is not too deep alone.
  std::string half = "a";
  for (int i = 0; i < 40; ++i) {
    half += ".a";
  }
  EXPECT_THAT(
      error_of(half + ": {" + half + ": 1}"), HasSubstr("nested deeper"));
  EXPECT_FALSE(parse_override(half + "={" + half + ": 1}"));
  const Node deepest = parsed("a: {" + half + ": 1}");
  EXPECT_EQ(to_yaml(parsed(to_yaml(deepest))), to_yaml(deepest));
}

TEST(ParseYaml, AliasesThatExplodeAreRefused) {
  std::string text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    text += fmt::format("a{}: &a{} [", i, i);
    for (int k = 0; k < 10; ++k) {
      text += fmt::format("{}*a{}", k == 0 ? "" : ", ", i - 1);
    }
    text += "]\n";
  }
  EXPECT_THAT(error_of(text), HasSubstr("more than 20000 values"));
}

TEST(ParseYaml, CyclicAliasIsRefused) {
  EXPECT_THAT(
      error_of("a: &x\n  b: *x\n"),
      HasSubstr("an alias stands inside what it names"));
}

TEST(ParseYaml, AliasesAndMergeKeysWork) {
  const Node node = parsed(
      "base: &base {lr: 1, decay: 2}\n"
      "other: &other {lr: 9, nest: {x: 1}}\n"
      "one:\n  <<: *base\n  lr: 3\n"
      "two:\n  <<: [*base, *other]\n"
      "three: *base\n");
  EXPECT_EQ(at(node, "one.lr").text(), "3");
  EXPECT_EQ(at(node, "one.decay").text(), "2");
  EXPECT_EQ(at(node, "two.lr").text(), "1");
  EXPECT_EQ(at(node, "two.nest.x").text(), "1");
  EXPECT_EQ(at(node, "three.decay").text(), "2");
  EXPECT_THAT(error_of("a:\n  <<: 3\n"), HasSubstr("'<<' takes a map"));
}

// Found by the fuzzer: such a key was read as `? key`, and printed as one that
// YAML's own limit for plain keys refuses.
TEST(ParseYaml, LongKeysAreRefused) {
  const std::string longest(200, 'k');
  EXPECT_TRUE(parse_yaml(to_yaml(parsed(longest + ": 1")), "x"));
  EXPECT_NE(
      error_of("? " + longest + "k\n: 1").find("job.yaml:1: a key is over 200"),
      std::string::npos);
  EXPECT_FALSE(parse_override(longest + "k=1"));
}

TEST(ParseYaml, HugeTextIsRefused) {
  EXPECT_THAT(
      error_of(std::string((1 << 20) + 1, 'a')), HasSubstr("larger than"));
}

// Whatever the bytes are, the answer is a tree or an error, never a crash, and
// what was read prints to text that reads back to the same tree.
TEST(ParseYaml, RandomTextNeverCrashes) {
  const std::vector<std::string> pieces = {
      "a",    "b.c",  ": ",   ":",      "\n",  "  ",         "- ",
      "[",    "]",    "{",    "}",      ",",   "&x ",        "*x",
      "'",    "\"",   "|",    ">",      "#",   "\t",         "---",
      "...",  "!!",   "!t ",  "? ",     "<<:", "1e3",        "~",
      "%",    "@",    "null", "\\",     "\r",  "\\x00",      "\xc3\xa9",
      "\x01", "\xff", "=",    "\n    ", "!<",  "%YAML 1.2\n"};
  std::mt19937 random(20261115);
  for (int round = 0; round < 5'000; ++round) {
    std::string text;
    const size_t length = random() % 24;
    for (size_t i = 0; i < length; ++i) {
      text += pieces[random() % pieces.size()];
    }
    const auto first = parse_yaml(text, "f");
    if (!first) {
      EXPECT_EQ(first.error().code(), ErrorCode::kInvalidInput);
      continue;
    }
    const std::string printed = to_yaml(*first);
    const auto second = parse_yaml(printed, "f");
    ASSERT_TRUE(second) << text << "\n--\n"
                        << printed << second.error().to_string();
    ASSERT_EQ(to_yaml(*second), printed) << text;
  }
}

// Time must not grow with the square of what a hostile file repeats.
TEST(ParseYaml, LargeFilesAreReadOrRefusedQuickly) {
  std::string dotted;
  std::string flat;
  for (int i = 0; i < 2'000; ++i) {
    dotted += fmt::format("a.b.k{}: {}\n", i, i);
    flat += fmt::format("k{}: {}\n", i, i);
  }
  EXPECT_EQ(at(parsed(dotted), "a.b.k1999").text(), "1999");
  EXPECT_EQ(at(parsed(flat), "k1999").text(), "1999");
  EXPECT_THAT(
      error_of(flat + std::string(100'000, '\n')), StartsWith("no error"));
  for (const std::string piece :
       {"? ",
        "- ",
        "{",
        "[",
        "a: ",
        "&a ",
        "!a ",
        "'",
        "\"",
        "|\n",
        "#",
        "*a ",
        ",",
        "\n "}) {
    std::string many;
    while (many.size() < 20'000) {
      many += piece;
    }
    EXPECT_FALSE(error_of(many).empty());
  }
}

TEST(LoadYaml, NamesThePathThatFails) {
  const auto absent = load_yaml("/nowhere/job.yaml");
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(absent.error().to_string(), HasSubstr("/nowhere/job.yaml"));
  const auto folder = load_yaml("/tmp");
  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().to_string(), HasSubstr("/tmp"));
}

TEST(LoadYaml, ReadsAFile) {
  char folder[] = "/tmp/lockstep-config-XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string path = std::string(folder) + "/a.yaml";
  std::ofstream(path) << "x:\n  y: 1\n";
  const auto node = load_yaml(path);
  ASSERT_TRUE(node);
  EXPECT_EQ(at(*node, "x.y").place().to_string(), path + ":2");
  std::filesystem::remove_all(folder);
}

TEST(ParseOverride, TakesTextListsMapsAndNull) {
  const auto value = [](std::string_view argument) {
    auto node = parse_override(argument);
    EXPECT_TRUE(node) << (node ? "" : node.error().to_string());
    return node ? at(*node, "a.b") : Node();
  };
  EXPECT_EQ(value("a.b=1e-3").text(), "1e-3");
  EXPECT_EQ(value("a.b=1e-3").place().to_string(), "command line 'a.b=1e-3'");
  EXPECT_EQ(value("a.b=[1, x]").items().size(), 2u);
  EXPECT_EQ(value("a.b={c: d}").find("c")->text(), "d");
  EXPECT_EQ(value("a.b=\"x y\"").text(), "x y");
  EXPECT_EQ(value("a.b='null'").text(), "null");
  EXPECT_EQ(value("a.b=null").kind(), Node::Kind::kNull);
  EXPECT_EQ(value("a.b=~").kind(), Node::Kind::kNull);
  EXPECT_EQ(value("a.b=").kind(), Node::Kind::kScalar);
  EXPECT_EQ(value("a.b=").text(), "");
  EXPECT_EQ(value("a.b=*.png").text(), "*.png");
  EXPECT_EQ(value("a.b=x: y # z").text(), "x: y # z");
  EXPECT_EQ(value("a.b=c=d").text(), "c=d");
}

TEST(ParseOverride, BadArgumentsSayWhy) {
  const auto failure = [](std::string_view argument) {
    const auto node = parse_override(argument);
    return node ? "no error" : node.error().to_string();
  };
  EXPECT_EQ(
      failure("lr"),
      "command line 'lr': this is not key=value (such as optim.lr=0.001)");
  EXPECT_THAT(failure("=3"), HasSubstr("there is no key before '='"));
  EXPECT_THAT(failure("a b=3"), HasSubstr("'a b' is not a key"));
  EXPECT_THAT(failure("a..b=3"), HasSubstr("a part of it is empty"));
  EXPECT_THAT(failure("a.=3"), HasSubstr("a part of it is empty"));
  EXPECT_THAT(failure("a=[1,"), StartsWith("command line 'a=[1,': "));
  EXPECT_THAT(failure("a=\xff"), HasSubstr("not text"));
}

TEST(SetPath, MakesMapsAndRefusesValuesInTheWay) {
  Node node = parsed("a: 1\nb: {c: 2}\n");
  EXPECT_TRUE(node.set_path("b.d.e", Node::scalar("3", {"x", 0})));
  EXPECT_EQ(at(node, "b.d.e").text(), "3");
  EXPECT_EQ(at(node, "b.c").text(), "2");
  const auto refused = node.set_path("a.b", Node::scalar("3", {"x", 0}));
  ASSERT_FALSE(refused);
  EXPECT_EQ(
      refused.error().to_string(),
      "x: cannot set a.b: a is a value there (job.yaml:1), not a map");
}

TEST(Merge, LaterOverEarlierKeyByKey) {
  const Node base = parsed("a: {x: 1, w: 2}\nb: [1, 2]\nc: 3\n");
  const Node over = parsed("a: {w: 9, z: 4}\nb: [7]\nc: {d: 1}\n");
  EXPECT_EQ(
      to_flow_yaml(merge(base, over)),
      "{a: {x: 1, w: 9, z: 4}, b: [7], c: {d: 1}}");
  EXPECT_EQ(to_yaml(merge(base, Node())), to_yaml(base));
  EXPECT_EQ(to_yaml(merge(Node(), base)), to_yaml(base));
}

TEST(Node, EraseAndReplace) {
  Node node = parsed("a: 1\nb: 2\n");
  EXPECT_TRUE(node.erase("a"));
  EXPECT_FALSE(node.erase("a"));
  node.set("b", Node::scalar("5", {}));
  EXPECT_EQ(to_flow_yaml(node), "{b: 5}");
}

TEST(ToYaml, ReadsBackToTheSameTexts) {
  for (const std::string text : {"yes",
                                 "1e3",
                                 "",
                                 "a: b",
                                 "#x",
                                 "x #y",
                                 " lead",
                                 "trail ",
                                 "null",
                                 "~",
                                 "-",
                                 "- a",
                                 "[1]",
                                 "{a}",
                                 "*x",
                                 "&x",
                                 "!t",
                                 "%d",
                                 "@a",
                                 "`a`",
                                 "a\nb",
                                 "a\tb",
                                 "\"q\"",
                                 "it's",
                                 "back\\s",
                                 "\x01\x7f",
                                 "0x10",
                                 "1_000",
                                 "12:30",
                                 "2020-01-01",
                                 "a:",
                                 "key: {v}",
                                 "plain text",
                                 "/usr/a.png",
                                 "http://x:80/a?b=c&d",
                                 "\xc3\xa9",
                                 "...",
                                 "---",
                                 "<<",
                                 "=",
                                 ".inf"}) {
    Node node = Node::map({});
    node.set("k", Node::scalar(text, {}, true));
    Node list = Node::list({});
    list.append(Node::scalar(text, {}));
    node.set("l", list);
    node.set("a.b " + text, Node::scalar("v", {}));
    for (const std::string& printed :
         {to_yaml(node), to_flow_yaml(node) + "\n"}) {
      const Node back = parsed(printed);
      EXPECT_EQ(at(back, "k").text(), text) << printed;
      ASSERT_EQ(at(back, "l").items().size(), 1u) << printed;
      EXPECT_EQ(at(back, "l").items()[0].text(), text) << printed;
      ASSERT_NE(back.find("a.b " + text), nullptr) << printed;
    }
  }
}

TEST(ToYaml, IsPrettyWhereItCan) {
  EXPECT_EQ(
      to_yaml(parsed("a:\n  b: 1\n  c: [x, 'y z']\nd: {}\ne: 1.5e-3\n")),
      "a:\n  b: 1\n  c: [x, y z]\nd: {}\ne: 1.5e-3\n");
  EXPECT_EQ(to_yaml(parsed("a: '5'\n")), "a: \"5\"\n");
}

}  // namespace
}  // namespace lockstep::config
