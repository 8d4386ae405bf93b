#include "lockstep/config/binder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace lockstep::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct OptimConfig {
  double lr = 2e-4;
  std::string schedule = "constant";
  std::vector<double> betas = {0.5, 0.999};
  void bind(Binder& b) {
    b.field("lr", lr, "learning rate", above(0));
    b.choice("schedule", schedule, {"constant", "cosine"}, "how lr moves");
    b.field("betas", betas, "Adam's betas", between(0, 1));
  }
};

struct DataConfig {
  std::string batch_size = "16";
  int64_t limit = 0;
  void bind(Binder& b) {
    b.text(
        "batch_size",
        batch_size,
        "samples a rank",
        [](const std::string& text) {
          return text == "auto" || text == "16"
                     ? Result<void>()
                     : Result<void>(Error(
                           ErrorCode::kInvalidInput,
                           "'" + text + "' is neither a number nor auto"));
        });
    b.field("limit", limit, "first samples only", at_least(0));
  }
};

struct Job {
  std::string name = "job";
  bool spot = false;
  int nodes = 1;
  Duration grace = std::chrono::seconds(60);
  std::optional<Money> budget;
  Bytes disk{64ull << 30};
  std::vector<std::string> hosts;
  std::map<std::string, std::string> envs;
  std::optional<int> retries;
  std::optional<double> ratio = 0.5;
  OptimConfig optim;
  DataConfig data;
  Node train;
  void bind(Binder& b) {
    b.field("name", name, "name of the job");
    b.field("spot", spot, "use the spot market");
    b.field("nodes", nodes, "machines", at_least(1));
    b.field("grace", grace, "time to stop", at_least(1));
    b.field("budget", budget, "hard cap", above(0));
    b.field("disk", disk, "disk of a node");
    b.field("hosts", hosts, "own machines");
    b.field("envs", envs, "environment");
    b.field("retries", retries, "tries again", at_least(0));
    b.field("ratio", ratio, "any number");
    b.group("optim", optim, "optimiser");
    b.group("data", data, "data set");
    b.raw("train", train, "read by the trainer");
  }
};

Result<Job> read_text(const std::string& text) {
  LOCKSTEP_ASSIGN(Node node, parse_yaml(text, "job.yaml"));
  return read<Job>(node);
}

std::string error_of(const std::string& text) {
  const auto job = read_text(text);
  return job ? "no error" : job.error().to_string();
}

TEST(Binder, ReadsEveryType) {
  const auto job = read_text(
      "name: 5\nspot: yes\nnodes: 1e1\ngrace: 1h30m\nbudget: 20 USD\n"
      "disk: 2GiB\nhosts: [a, '1']\nenvs: {A: 1, B: , my.key: x}\n"
      "retries: +3\nratio: .inf\n"
      "optim: {lr: 1e-3, schedule: cosine, betas: [0, 1]}\n"
      "data: {batch_size: auto, limit: 9007199254740993}\n"
      "train: {recipe: vit}\n");
  ASSERT_TRUE(job) << job.error().to_string();
  EXPECT_EQ(job->name, "5");
  EXPECT_TRUE(job->spot);
  EXPECT_EQ(job->nodes, 10);
  EXPECT_EQ(job->grace, std::chrono::minutes(90));
  EXPECT_EQ(job->budget, Money::from_dollars(20));
  EXPECT_EQ(job->disk.count, 2ull << 30);
  EXPECT_THAT(job->hosts, ElementsAre("a", "1"));
  EXPECT_EQ(job->envs.at("A"), "1");
  EXPECT_EQ(job->envs.at("B"), "");
  EXPECT_EQ(job->envs.at("my.key"), "x");
  EXPECT_EQ(job->retries, 3);
  EXPECT_EQ(job->ratio, std::numeric_limits<double>::infinity());
  EXPECT_EQ(job->optim.lr, 1e-3);
  EXPECT_EQ(job->optim.schedule, "cosine");
  EXPECT_EQ(job->data.batch_size, "auto");
  EXPECT_EQ(job->data.limit, 9007199254740993);
  EXPECT_EQ(job->train.find("recipe")->text(), "vit");
}

TEST(Binder, NullKeepsTheDefaultAndEmptiesAnOptional) {
  const auto job = read_text("nodes:\noptim:\nratio:\nhosts: ~\n");
  ASSERT_TRUE(job) << job.error().to_string();
  EXPECT_EQ(job->nodes, 1);
  EXPECT_EQ(job->optim.lr, 2e-4);
  EXPECT_EQ(job->ratio, std::nullopt);
  EXPECT_TRUE(read_text(""));
}

TEST(Binder, UnknownKeysGetTheNearest) {
  EXPECT_EQ(
      error_of("name: a\n\noptim: {sheduler: x}\nnods: 2\n"),
      "job.yaml:3: unknown key 'optim.sheduler'; did you mean "
      "'optim.schedule'?\n"
      "job.yaml:4: unknown key 'nods'; did you mean 'nodes'?");
  EXPECT_EQ(
      error_of("optim:\n  zzzzzz: 1\n"),
      "job.yaml:2: unknown key 'optim.zzzzzz'; accepted: optim.lr, "
      "optim.schedule, optim.betas");
  EXPECT_THAT(
      error_of("limit: 1\n"),
      HasSubstr("unknown key 'limit'; did you mean 'data.limit'?"));
  EXPECT_THAT(error_of("other: {a: 1}\n"), HasSubstr("unknown key 'other'"));
}

TEST(Binder, MistypedSectionsGetTheNearestAtTheirLine) {
  for (const char* text :
       {"\noptmi:\n  # why\n\n  lr: 1\n",
        "\noptmi.lr: 1\n",
        "\noptmi: {lr: 1}\n",
        "\noptmi:\n"}) {
    EXPECT_EQ(
        error_of(text),
        "job.yaml:2: unknown key 'optmi'; did you mean 'optim'?");
  }
  EXPECT_EQ(
      error_of("evns:\n  A: 1\n"),
      "job.yaml:1: unknown key 'evns'; did you mean 'envs'?");
  EXPECT_EQ(
      error_of("trian:\n  recipe: vit\n"),
      "job.yaml:1: unknown key 'trian'; did you mean 'train'?");
  // What it stands in was no mistake.
  EXPECT_EQ(
      error_of("optim:\n  zzzzzz:\n    a: 1\n"),
      "job.yaml:2: unknown key 'optim.zzzzzz'; accepted: optim.lr, "
      "optim.schedule, optim.betas");
  EXPECT_EQ(
      error_of("nodes:\n  - 1\n"),
      "job.yaml:1: nodes must be an integer, not the list [1]");
}

TEST(Binder, AMistypedSectionOfASectionGetsTheNearest) {
  struct Inner {
    int width = 1;
    void bind(Binder& b) { b.field("width", width, "of it"); }
  };
  struct Middle {
    Inner encoder;
    void bind(Binder& b) { b.group("encoder", encoder, "first half"); }
  };
  struct Outer {
    Middle model;
    void bind(Binder& b) { b.group("model", model, "the model"); }
  };
  const auto read_outer =
      read<Outer>(*parse_yaml("model:\n  encodr:\n\n    width: 2\n", "x"));
  ASSERT_FALSE(read_outer);
  EXPECT_EQ(
      read_outer.error().to_string(),
      "x:2: unknown key 'model.encodr'; did you mean 'model.encoder'?");
}

TEST(Binder, WrongTypesSayWhatIsAccepted) {
  EXPECT_EQ(
      error_of("optim: {lr: fast}\n"),
      "job.yaml:1: optim.lr must be a number, not 'fast'");
  EXPECT_EQ(
      error_of("nodes: 1.5\n"),
      "job.yaml:1: nodes must be an integer, not '1.5'");
  EXPECT_THAT(error_of("nodes: 3000000000\n"), HasSubstr("an integer"));
  EXPECT_THAT(error_of("nodes: ''\n"), HasSubstr("an integer, not ''"));
  EXPECT_THAT(
      error_of("data: {limit: 1e300}\n"), HasSubstr("must be an integer"));
  EXPECT_THAT(error_of("spot: 2\n"), HasSubstr("must be true or false"));
  EXPECT_THAT(error_of("ratio: nan\n"), HasSubstr("must be a number"));
  EXPECT_EQ(
      error_of("name: [1, 2]\n"),
      "job.yaml:1: name must be text, not the list [1, 2]");
  EXPECT_THAT(
      error_of("grace: soon\n"),
      HasSubstr("grace must be a duration (90s, 1h30m, 250ms or 2d), not"));
  EXPECT_THAT(error_of("budget: 20 EUR\n"), HasSubstr("a sum of money"));
  EXPECT_THAT(error_of("disk: big\n"), HasSubstr("a number of bytes"));
  EXPECT_THAT(
      error_of("hosts: a\n"), HasSubstr("a list of texts ([a, b]), not 'a'"));
  EXPECT_THAT(
      error_of("optim: {betas: [a]}\n"), HasSubstr("a list of numbers"));
  EXPECT_THAT(error_of("envs: {A: [1]}\n"), HasSubstr("a map of texts"));
  EXPECT_THAT(
      error_of("optim: 3\n"),
      HasSubstr("optim must be a map of keys (optimiser), not '3'"));
  EXPECT_THAT(error_of("[1]\n"), HasSubstr("must be a map of keys"));
}

TEST(Binder, BoundsAndChoices) {
  EXPECT_EQ(
      error_of("nodes: 0\n"), "job.yaml:1: nodes must be at least 1, not 0");
  EXPECT_THAT(error_of("optim: {lr: 0}\n"), HasSubstr("above 0, not 0"));
  EXPECT_THAT(
      error_of("optim: {betas: [0.5, 2]}\n"),
      HasSubstr("optim.betas must be between 0 and 1, not the list [0.5, 2]"));
  EXPECT_THAT(error_of("grace: 10ms\n"), HasSubstr("at least 1, not 10ms"));
  EXPECT_THAT(error_of("budget: 0\n"), HasSubstr("budget must be above 0"));
  EXPECT_EQ(
      error_of("optim: {schedule: cosin}\n"),
      "job.yaml:1: optim.schedule must be one of: constant, cosine; not "
      "'cosin'; did you mean 'cosine'?");
  EXPECT_EQ(
      error_of("data: {batch_size: many}\n"),
      "job.yaml:1: data.batch_size: 'many' is neither a number nor auto");
}

TEST(Binder, AllErrorsAreReportedInTheOrderOfTheFile) {
  EXPECT_EQ(
      error_of("zzzzzzzz: 1\nnodes: 0\noptim:\n  lr: x\n"),
      "job.yaml:1: unknown key 'zzzzzzzz'; accepted: name, spot, nodes, grace, "
      "budget, disk, hosts, envs, retries, ratio, optim.lr, optim.schedule, "
      "optim.betas, data.batch_size, data.limit, train\n"
      "job.yaml:2: nodes must be at least 1, not 0\n"
      "job.yaml:4: optim.lr must be a number, not 'x'");
}

TEST(Binder, CommandLineErrorsShowTheArgument) {
  auto node = parse_override("optim.lr=fast");
  ASSERT_TRUE(node);
  const auto job = read<Job>(*node);
  ASSERT_FALSE(job);
  EXPECT_EQ(
      job.error().to_string(),
      "command line 'optim.lr=fast': optim.lr must be a number, not 'fast'");
}

TEST(Binder, DescribesWithDefaults) {
  const auto docs = describe<Job>();
  const auto find = [&](const std::string& key) {
    for (const auto& doc : docs) {
      if (doc.key == key) {
        return doc;
      }
    }
    ADD_FAILURE() << key;
    return FieldDoc();
  };
  EXPECT_EQ(find("optim.lr").value, "0.0002");
  EXPECT_EQ(find("optim.lr").type, "number, above 0");
  EXPECT_EQ(find("optim.lr").meaning, "learning rate");
  EXPECT_EQ(find("optim.schedule").type, "one of: constant, cosine");
  EXPECT_EQ(find("grace").value, "1m");
  EXPECT_EQ(find("disk").value, "64GiB");
  EXPECT_EQ(find("budget").value, "null");
  EXPECT_THAT(help_text(docs), HasSubstr("learning rate\n"));
}

TEST(PrintYaml, ReadsBackToTheSameValues) {
  Job job;
  job.name = "yes";
  job.spot = true;
  job.nodes = 7;
  job.grace = Duration(1'500'000'001);
  job.budget = Money::from_nanos(50'001);
  job.disk = Bytes{1025};
  job.hosts = {"", "1e3", "a: b", "#x", "10.0.0.1", "a,b", "multi\nline"};
  job.envs = {{"A.B", "null"}, {"C", ""}, {"D", "true"}};
  job.ratio = std::nullopt;
  job.optim.lr = 1e-5;
  job.optim.betas = {0.1, 1.0 / 3, 1};
  job.train = *parse_yaml("{recipe: vit, 'x.y': '1'}", "t");
  const std::string printed = print_yaml(describe(job));
  EXPECT_THAT(printed, HasSubstr("  lr: 1.0e-05\n")) << printed;
  EXPECT_THAT(printed, HasSubstr("name: \"yes\"\n"));
  const auto back = read_text(printed);
  ASSERT_TRUE(back) << printed << back.error().to_string();
  EXPECT_EQ(back->name, job.name);
  EXPECT_EQ(back->spot, job.spot);
  EXPECT_EQ(back->grace, job.grace);
  EXPECT_EQ(back->budget, job.budget);
  EXPECT_EQ(back->disk, job.disk);
  EXPECT_EQ(back->hosts, job.hosts);
  EXPECT_EQ(back->envs, job.envs);
  EXPECT_EQ(back->ratio, job.ratio);
  EXPECT_EQ(back->optim.lr, job.optim.lr);
  EXPECT_EQ(back->optim.betas, job.optim.betas);
  EXPECT_EQ(back->train.find("x.y")->text(), "1");
  EXPECT_EQ(print_yaml(describe(*back)), printed);
}

TEST(PrintYaml, NumbersAreExactAndShort) {
  struct One {
    double x = 0;
    void bind(Binder& b) { b.field("x", x, "a number"); }
  };
  for (const auto& [value, text] : std::vector<std::pair<double, std::string>>{
           {0.0002, "x: 0.0002\n"},
           {0.1 + 0.2, "x: 0.30000000000000004\n"},
           {1, "x: 1\n"},
           {1e22, "x: 1.0e+22\n"},
           {-1.5e-9, "x: -1.5e-09\n"},
           {5e-324, "x: 5.0e-324\n"},
           {-std::numeric_limits<double>::infinity(), "x: -.inf\n"},
           {std::numeric_limits<double>::max(),
            "x: 1.7976931348623157e+308\n"}}) {
    One one;
    one.x = value;
    EXPECT_EQ(print_yaml(describe(one)), text);
    const auto back = read<One>(*parse_yaml(text, "x"));
    ASSERT_TRUE(back) << text;
    EXPECT_EQ(back->x, value);
  }
}

// Two components that share a group each take their own keys.
TEST(Binder, AGroupMayBeBoundTwice) {
  struct Part {
    std::string key;
    int value = 0;
    void bind(Binder& b) { b.field(key, value, "one of two"); }
  };
  struct Both {
    Part first{"a"};
    Part second{"b"};
    void bind(Binder& b) {
      b.group("model", first, "the model");
      b.group("model", second, "the model");
    }
  };
  const auto both = read<Both>(*parse_yaml("model: {a: 1, b: 2}", "x"));
  ASSERT_TRUE(both) << both.error().to_string();
  EXPECT_EQ(both->first.value, 1);
  EXPECT_EQ(both->second.value, 2);
  EXPECT_EQ(print_yaml(describe(*both)), "model:\n  a: 1\n  b: 2\n");
  EXPECT_FALSE(read<Both>(*parse_yaml("model: {c: 1}", "x")));
}

}  // namespace
}  // namespace lockstep::config
