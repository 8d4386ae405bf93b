#include "lockstep/reach/ignore.h"

#include <gtest/gtest.h>

namespace lockstep::reach {
namespace {

TEST(Glob, StarsStopAtSlashes) {
  EXPECT_TRUE(matches_glob("*.log", "a.log"));
  EXPECT_FALSE(matches_glob("*.log", "a/b.log"));
  EXPECT_TRUE(matches_glob("a/*/c", "a/b/c"));
  EXPECT_FALSE(matches_glob("a/*/c", "a/b/b/c"));
  EXPECT_TRUE(matches_glob("a?c", "abc"));
  EXPECT_FALSE(matches_glob("a?c", "a/c"));
  EXPECT_FALSE(matches_glob("a?c", "ac"));
  EXPECT_TRUE(matches_glob("*", "x"));
  EXPECT_TRUE(matches_glob("a*b*c", "a1b2b3c"));
}

TEST(Glob, TwoStarsCross) {
  EXPECT_TRUE(matches_glob("**/x", "x"));
  EXPECT_TRUE(matches_glob("**/x", "a/b/x"));
  EXPECT_FALSE(matches_glob("**/x", "a/b/xx"));
  EXPECT_TRUE(matches_glob("a/**", "a/b/c"));
  EXPECT_FALSE(matches_glob("a/**", "a"));
  EXPECT_TRUE(matches_glob("a/**/z", "a/z"));
  EXPECT_TRUE(matches_glob("a/**/z", "a/b/c/z"));
  EXPECT_FALSE(matches_glob("a/**/z", "ab/z"));
  // Elsewhere two are one.
  EXPECT_FALSE(matches_glob("a**z", "a/z"));
  EXPECT_TRUE(matches_glob("a**z", "abcz"));
}

TEST(Glob, Classes) {
  EXPECT_TRUE(matches_glob("[a-c]x", "bx"));
  EXPECT_FALSE(matches_glob("[a-c]x", "dx"));
  EXPECT_TRUE(matches_glob("[!a-c]x", "dx"));
  EXPECT_FALSE(matches_glob("[^a-c]x", "ax"));
  EXPECT_TRUE(matches_glob("[]x]", "]"));
  EXPECT_TRUE(matches_glob("[a-]", "-"));
  EXPECT_FALSE(matches_glob("a[!b]c", "a/c"));
  EXPECT_TRUE(matches_glob("a[", "a["));
  EXPECT_TRUE(matches_glob("\\*", "*"));
  EXPECT_FALSE(matches_glob("\\*", "a"));
}

bool ignores(std::string_view rules, std::string_view path, bool folder) {
  IgnoreRules all;
  all.add(rules);
  return all.ignores(path, folder);
}

TEST(Ignore, NamesWithoutSlashesMatchEverywhere) {
  EXPECT_TRUE(ignores("*.o", "a.o", false));
  EXPECT_TRUE(ignores("*.o", "deep/er/a.o", false));
  EXPECT_TRUE(ignores("build", "x/build", true));
  EXPECT_FALSE(ignores("build", "x/builder", true));
}

TEST(Ignore, SlashesAnchor) {
  EXPECT_TRUE(ignores("/data", "data", true));
  EXPECT_FALSE(ignores("/data", "x/data", true));
  EXPECT_TRUE(ignores("a/b", "a/b", false));
  EXPECT_FALSE(ignores("a/b", "x/a/b", false));
}

TEST(Ignore, AFinalSlashMeansFolders) {
  EXPECT_TRUE(ignores("out/", "x/out", true));
  EXPECT_FALSE(ignores("out/", "x/out", false));
  EXPECT_TRUE(ignores("/a/out/", "a/out", true));
}

TEST(Ignore, LaterRulesWinAndNegationTakesBack) {
  EXPECT_FALSE(ignores("*.log\n!keep.log", "keep.log", false));
  EXPECT_TRUE(ignores("*.log\n!keep.log", "other.log", false));
  EXPECT_TRUE(ignores("!keep.log\n*.log", "keep.log", false));
}

TEST(Ignore, CommentsBlanksAndEscapes) {
  EXPECT_FALSE(ignores("# *.log\n\n", "x.log", false));
  EXPECT_TRUE(ignores("\\#x", "#x", false));
  EXPECT_TRUE(ignores("\\!x", "!x", false));
  EXPECT_TRUE(ignores("x   \r\n", "x", false));
  EXPECT_TRUE(ignores("x\\ ", "x ", false));
  EXPECT_FALSE(ignores("/\n", "x", true));
}

TEST(Ignore, RulesOfAFolderHoldBelowIt) {
  IgnoreRules rules;
  rules.add("/x\n*.tmp\n", "sub");
  EXPECT_TRUE(rules.ignores("sub/x", false));
  EXPECT_FALSE(rules.ignores("x", false));
  EXPECT_FALSE(rules.ignores("sub/deep/x", false));
  EXPECT_TRUE(rules.ignores("sub/deep/a.tmp", false));
  EXPECT_FALSE(rules.ignores("a.tmp", false));
}

}  // namespace
}  // namespace lockstep::reach
