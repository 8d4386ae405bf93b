#include "lockstep/launch/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "lockstep/launch/masks.h"

namespace lockstep::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class JobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() /
              ("lockstep-job-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Result<Job> load(
      const std::string& text,
      const std::vector<std::string>& overrides = {},
      const Environment& environment = {}) {
    const auto path = folder_ / "my-job.yaml";
    std::ofstream(path) << text;
    return load_job(path.string(), overrides, environment);
  }
  std::string error(
      const std::string& text,
      const std::vector<std::string>& overrides = {}) {
    const auto job = load(text, overrides);
    return job ? "" : job.error().to_string();
  }
  std::vector<std::string> arguments(const Job& job, int generation = 0) {
    const auto argv = job_command(job, "lockstep-train", generation);
    return argv ? *argv : std::vector<std::string>{argv.error().to_string()};
  }

  std::filesystem::path folder_;
};

TEST_F(JobTest, RolesHaveProgramsOfTheirOwn) {
  const auto job = load("run: {head: ./scheduler, worker: [./work, -v]}\n");
  ASSERT_TRUE(job.has_value()) << job.error().to_string();
  EXPECT_THAT(
      *job_command(*job, "", 0, 0), ElementsAre("bash", "-c", "./scheduler"));
  for (const int rank : {1, 7}) {
    EXPECT_THAT(*job_command(*job, "", 0, rank), ElementsAre("./work", "-v"));
  }
  EXPECT_THAT(
      error("run:\n  head: x\n"),
      AllOf(HasSubstr("my-job.yaml:"), HasSubstr("'worker' is missing")));
  EXPECT_THAT(error("run: {head: x, worker: []}\n"), HasSubstr("run.worker"));
  EXPECT_THAT(error("run: {head: {a: b}, worker: x}\n"), HasSubstr("run.head"));
}

TEST_F(JobTest, AContainerHasItsOwnShellAndTrainer) {
  const auto shell = load("run: echo\ncontainer: i\n");
  EXPECT_THAT(arguments(*shell), ElementsAre("sh", "-c", "echo"));
  const auto train = load("train: {recipe: vit}\ncontainer: i\n");
  EXPECT_THAT(
      *job_command(*train, "/here/lockstep-train", 0),
      ElementsAre("lockstep-train", "vit"));
  EXPECT_THAT(
      error("run: x\ncontainer: {imag: i}\n"), HasSubstr("my-job.yaml:2"));
}

TEST_F(JobTest, LaunchersHaveOptions) {
  const auto job = load(
      "run: x\nmpi: {options: [--mca, btl, self]}\n"
      "slurm: {partition: gpu, options: [--exclusive]}\n");
  ASSERT_TRUE(job.has_value()) << job.error().to_string();
  EXPECT_THAT(job->mpi.options, ElementsAre("--mca", "btl", "self"));
  EXPECT_EQ(job->slurm.partition, "gpu");
  EXPECT_THAT(job->slurm.options, ElementsAre("--exclusive"));
  EXPECT_THAT(
      error("run: x\nslurm: {partion: a}\n"), HasSubstr("slurm.partition"));
}

TEST_F(JobTest, ReadsEveryKeyOfTheManual) {
  const auto job = load(R"(
name: cifar-vit
resources:
  hosts: [10.0.0.1, 10.0.0.2]
  cloud: aws
  region: us-west-2
  instance_type: g4dn.xlarge
  use_spot: true
  image_id: ami-1
  price: 0.40 USD
num_nodes: 2
procs_per_node: 4
container: my/image:tag
workdir: .
envs: {OMP_NUM_THREADS: 1}
file_mounts: {data: "s3://bucket/cifar10.tar.gz"}
setup: |
  echo hi
train:
  recipe: vit
  trainer: {max_epochs: 10, strategy: ddp}
iterations: {pattern: 'step (?<step>\d+)'}
outputs: s3://bucket/runs
stop_signal: SIGUSR1
grace: 30s
optimise: {goal: cost, period: 60s, candidates: [c5.xlarge, c5.2xlarge]}
budget: 20 USD
max_duration: 4h
)");
  ASSERT_TRUE(job.has_value()) << job.error().to_string();
  EXPECT_EQ(job->name, "cifar-vit");
  EXPECT_EQ(job->num_nodes, 2);
  EXPECT_EQ(job->procs_per_node, 4);
  EXPECT_EQ(job->envs.at("OMP_NUM_THREADS"), "1");
  EXPECT_EQ(job->grace, std::chrono::seconds(30));
  EXPECT_EQ(job->budget, Money::from_dollars(20));
  EXPECT_EQ(job->max_duration, std::chrono::hours(4));
  EXPECT_EQ(job->resources.price, Money::from_dollars(0.4));
  EXPECT_EQ(job->optimise.goal, "cost");
  EXPECT_EQ(job->optimise.period, std::chrono::seconds(60));
  EXPECT_FALSE(job->optimise.dry_run);
}

TEST_F(JobTest, ReadsWhatFollowsAHang) {
  auto job = load("run: 'true'\n");
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->hang.policy, "report");
  EXPECT_FALSE(job->hang.limit());
  job = load("run: 'true'\nhang: {policy: restart, after: 90s}\n");
  ASSERT_TRUE(job.has_value()) << job.error().to_string();
  EXPECT_EQ(job->hang.policy, "restart");
  EXPECT_EQ(job->hang.limit(), std::chrono::seconds(90));
  EXPECT_THAT(job_yaml(*job), HasSubstr("after: \"90s\""));
  EXPECT_THAT(
      error("run: 'true'\nhang: {policy: kill}\n"),
      HasSubstr(
          "my-job.yaml:2: hang.policy must be one of: report, restart, "
          "stop; not 'kill'"));
  EXPECT_THAT(
      error("run: 'true'\nhang:\n  after: 0s\n"),
      HasSubstr(
          "my-job.yaml:3: hang.after: '0s'; accepted: auto, or a "
          "duration"));
}

TEST_F(JobTest, TellsTheVariablesOfOneHostFromThoseOfAll) {
  auto job = load(
      "run: x\nenvs: {A: 1, n1: {A: 2, B: 3}, 10.0.0.2: {B: 4}, "
      "user@n3.lab: {C: 5}}\n");
  ASSERT_TRUE(job.has_value()) << job.error().to_string();
  EXPECT_EQ(common_envs(*job), (Environment{{"A", "1"}}));
  EXPECT_EQ(host_envs(*job, "n1"), (Environment{{"A", "2"}, {"B", "3"}}));
  EXPECT_EQ(host_envs(*job, "10.0.0.2"), (Environment{{"B", "4"}}));
  EXPECT_EQ(host_envs(*job, "user@n3.lab"), (Environment{{"C", "5"}}));
  // One run may be on some of the job's hosts.
  job->resources.hosts = {"n1", "10.0.0.2:4", "user@n3.lab"};
  EXPECT_TRUE(check_host_envs(*job, {"n1"}));
  job->resources.hosts.clear();
  EXPECT_TRUE(check_host_envs(*job, {"n1", "10.0.0.2", "user@n3.lab"}));
  const auto unknown = check_host_envs(*job, {"n1", "n2", "user@n3.lab"});
  ASSERT_FALSE(unknown);
  EXPECT_THAT(
      unknown.error().to_string(), HasSubstr("'10.0.0.2' is not a host"));
  EXPECT_THAT(
      check_host_envs(*job, {}).error().to_string(), HasSubstr("--hosts"));
  EXPECT_THAT(
      error("run: x\nenvs: {n1: {RANK: 1}}\n"), HasSubstr("lockstep sets"));
}

TEST_F(JobTest, ComesBackFromItsText) {
  const auto job =
      load("name: demo\nrun: [prog, 'a b']\nenvs: {n1: {A: 2}}\ngrace: 5s\n");
  ASSERT_TRUE(job.has_value());
  const auto again = parse_job(job_text(*job), "orders", {});
  ASSERT_TRUE(again.has_value()) << again.error().to_string();
  EXPECT_EQ(job_text(*again), job_text(*job));
  EXPECT_EQ(host_envs(*again, "n1"), (Environment{{"A", "2"}}));
  EXPECT_THAT(arguments(*again), ElementsAre("prog", "a b"));
}

TEST_F(JobTest, NamesAWrongKeyWithItsLine) {
  const std::string text = error("name: x\nprocs_per_nod: 2\nrun: 'true'\n");
  EXPECT_THAT(text, HasSubstr("my-job.yaml:2"));
  EXPECT_THAT(text, HasSubstr("procs_per_node"));
}

TEST_F(JobTest, ChecksValues) {
  for (const char* procs : {"0", "1000000"}) {
    EXPECT_THAT(
        error(std::string("run: x\nprocs_per_node: ") + procs + "\n"),
        HasSubstr("between 1 and 4096"));
  }
  EXPECT_THAT(error("run: x\ngrace: soon\n"), HasSubstr("duration"));
  EXPECT_THAT(error("run: x\nstop_signal: SIGTEM\n"), HasSubstr("SIGTERM"));
  EXPECT_THAT(
      error("run: x\niterations: {pattern: 'step (?<step>'}\n"),
      HasSubstr("my-job.yaml:2"));
  EXPECT_THAT(error("run: x\nenvs: {RANK: 1}\n"), HasSubstr("lockstep sets"));
  EXPECT_THAT(error("name: x\n"), HasSubstr("neither 'run' nor 'train'"));
  EXPECT_THAT(error("run: x\ntrain: {recipe: vit}\n"), HasSubstr("not both"));
  EXPECT_THAT(error("train: {data: x}\n"), HasSubstr("recipe"));
  EXPECT_THAT(error("run: {master: x}\n"), HasSubstr("head, worker"));
  EXPECT_THAT(
      error("run: x\nresources: {launcher: slum}\n"), HasSubstr("slurm"));
}

TEST_F(JobTest, RunsTextThroughBashAndListsAsTheyAre) {
  EXPECT_THAT(
      arguments(*load("run: echo $RANK\n")),
      ElementsAre("bash", "-c", "echo $RANK"));
  EXPECT_THAT(
      arguments(*load("run: [python3, a b, '1']\n")),
      ElementsAre("python3", "a b", "1"));
}

TEST_F(JobTest, MakesTrainerArguments) {
  const auto job = load(
      "train:\n  recipe: dcgan\n  data: {name: mnist, batch_size: 16}\n"
      "  trainer.max_epochs: 1\n  optim: {betas: [0.5, 0.999]}\n");
  ASSERT_TRUE(job.has_value()) << job.error().to_string();
  EXPECT_THAT(
      arguments(*job),
      ElementsAre(
          "lockstep-train",
          "dcgan",
          "data=mnist",
          "data.batch_size=16",
          "trainer.max_epochs=1",
          "optim.betas=[0.5, 0.999]"));
}

TEST_F(JobTest, LaysOverridesOverTheTrainerToo) {
  const std::string text = "train: {recipe: dcgan, data: mnist}\n";
  const auto job = load(
      text,
      {"data=cifar10", "data.batch_size=8", "procs_per_node=3", "optim.lr=1"});
  ASSERT_TRUE(job.has_value()) << job.error().to_string();
  EXPECT_EQ(job->procs_per_node, 3);
  EXPECT_THAT(
      arguments(*job),
      ElementsAre(
          "lockstep-train",
          "dcgan",
          "data=cifar10",
          "data.batch_size=8",
          "optim.lr=1"));
  EXPECT_THAT(error("run: x\n", {"optim.lr=1"}), HasSubstr("optim"));
  EXPECT_THAT(error("run: x\n", {"novalue"}), HasSubstr("key=value"));
}

TEST_F(JobTest, AChoiceKeepsTheKeysBesideIt) {
  const std::string text =
      "train:\n  recipe: dcgan\n  data: {name: mnist, batch_size: 16}\n"
      "  trainer: {max_steps: 1}\n";
  for (const std::string before : {"", "train."}) {
    const auto job =
        load(text, {before + "data=synthetic", before + "trainer=ddp"});
    ASSERT_TRUE(job.has_value()) << job.error().to_string();
    EXPECT_THAT(
        arguments(*job),
        ElementsAre(
            "lockstep-train",
            "dcgan",
            "data=synthetic",
            "data.batch_size=16",
            "trainer.max_steps=1",
            "trainer=ddp"));
    // The program's own choice again, which is none.
    EXPECT_THAT(
        arguments(*load(text, {before + "data=null"})),
        ElementsAre(
            "lockstep-train",
            "dcgan",
            "data.batch_size=16",
            "trainer.max_steps=1"));
  }
}

TEST_F(JobTest, ARecipeAloneTakesOverrides) {
  EXPECT_THAT(
      arguments(*load("train: vit\n")), ElementsAre("lockstep-train", "vit"));
  for (const char* data : {"data=mnist", "train.data=mnist"}) {
    const auto job = load("train: vit\n", {data});
    ASSERT_TRUE(job.has_value()) << job.error().to_string();
    EXPECT_THAT(
        arguments(*job), ElementsAre("lockstep-train", "vit", "data=mnist"));
  }
  EXPECT_THAT(
      arguments(*load("train: {recipe: vit, data: mnist}\n", {"train=dcgan"})),
      ElementsAre("lockstep-train", "dcgan", "data=mnist"));
}

TEST_F(JobTest, ResumesInALaterGeneration) {
  const auto job = load("train: {recipe: vit}\n");
  EXPECT_THAT(
      arguments(*job, 1),
      ElementsAre("lockstep-train", "vit", "trainer.resume=auto"));
  const auto told = load("train: {recipe: vit, trainer.resume: none}\n");
  EXPECT_THAT(
      arguments(*told, 1),
      ElementsAre("lockstep-train", "vit", "trainer.resume=none"));
}

TEST_F(JobTest, KeepsSecretsOutOfEverything) {
  const Environment environment = {{"TOKEN", "s3cr3t"}};
  const auto job = load(
      "run: curl -H s3cr3t x\nsecrets: {TOKEN: null, OTHER: literal}\n",
      {},
      environment);
  ASSERT_TRUE(job.has_value()) << job.error().to_string();
  EXPECT_EQ(job->secret_values.at("TOKEN"), "s3cr3t");
  EXPECT_EQ(job->secret_values.at("OTHER"), "literal");
  const std::string yaml = job_yaml(*job);
  EXPECT_THAT(yaml, Not(HasSubstr("s3cr3t")));
  EXPECT_THAT(yaml, Not(HasSubstr("literal")));
  EXPECT_THAT(yaml, HasSubstr("TOKEN"));
  EXPECT_EQ(redact(*job, "a s3cr3t b literal"), "a *** b ***");
  EXPECT_THAT(
      error("run: x\nsecrets: {TOKEN: null}\n"), HasSubstr("TOKEN is not set"));
}

TEST_F(JobTest, HidesValuesThatYamlQuotesAndLeavesKeys) {
  const Environment environment = {
      {"TOKEN", "pa\"ss\\wo"}, {"WORD", "run"}, {"LINES", "one two\nthree"}};
  const auto job = load(
      "run: ['echo', 'pa\"ss\\wo', 'run 1']\n"
      "envs: {A: 'x pa\"ss\\wo', run: b, h1.A: 'one two'}\n"
      "train.run: 3\nsetup: |\n  one two\n  three\nprocs_per_node: 2\n"
      "secrets: {TOKEN: null, WORD: null, LINES: null}\n",
      {"train=null"},
      environment);
  ASSERT_TRUE(job.has_value()) << job.error().to_string();
  const std::string yaml = job_yaml(*job);
  EXPECT_THAT(yaml, HasSubstr("run: [echo, \"***\", \"*** 1\"]"));
  EXPECT_THAT(yaml, HasSubstr("A: \"x ***\""));
  EXPECT_THAT(yaml, HasSubstr("procs_per_node: 2\n"));
  EXPECT_THAT(yaml, Not(HasSubstr("ss")));
  EXPECT_THAT(yaml, Not(HasSubstr("two")));
  const auto again = load(yaml, {}, environment);
  ASSERT_TRUE(again.has_value()) << again.error().to_string() << yaml;
  EXPECT_EQ(again->envs.at("run"), "b");
  EXPECT_EQ(again->envs.at("h1.A"), "***");
}

TEST_F(JobTest, RefusesVariablesThatCannotBe) {
  EXPECT_THAT(
      error("run: x\nenvs: {A: \"b\\0c\"}\n"),
      AllOf(HasSubstr("my-job.yaml:2"), HasSubstr("envs.A"), HasSubstr("NUL")));
  EXPECT_THAT(
      error("run: x\nenvs: {TOKEN: a}\nsecrets: {TOKEN: b}\n"),
      AllOf(HasSubstr("TOKEN"), HasSubstr("'secrets'")));
}

TEST_F(JobTest, HidesLinesOfAValueAndTheLongestFirst) {
  Job job;
  job.secret_values = {
      {"A", "abc"},
      {"KEY", "-----BEGIN-----\nMIIEow\r\nx\n-----END-----\n"},
      {"LONG", "abcdef"}};
  EXPECT_EQ(redact(job, "abcdef abc"), "*** ***");
  EXPECT_EQ(redact(job, "-----BEGIN-----"), "***");
  EXPECT_EQ(redact(job, "a MIIEow b\nx"), "a *** b\nx");
}

TEST_F(JobTest, LeavesPrintsByWhichSecretsAreMaskedLater) {
  Job job;
  job.secret_values = {
      {"A", "abc"}, {"KEY", "first line\nsecond line"}, {"LONG", "abcdef"}};
  const auto run = record::RunDirectory::create(folder_, "masked");
  ASSERT_TRUE(run.has_value());
  EXPECT_EQ(Masks::read(*run).apply("abc"), "abc");
  ASSERT_TRUE(Masks::of(job).write(*run).has_value());
  const Masks masks = Masks::read(*run);
  EXPECT_EQ(masks.apply("abcdefabc abd abc"), "****** abd ***");
  EXPECT_EQ(masks.apply("a first line"), "a ***");
  EXPECT_EQ(masks.apply("second line and second lin"), "*** and second lin");
  EXPECT_EQ(masks.apply("ab"), "ab");
  EXPECT_EQ(masks.apply(""), "");
  const auto text = os::real_files().read(run->path() / ".masks");
  ASSERT_TRUE(text.has_value());
  EXPECT_THAT(*text, Not(HasSubstr("abc\"")));
  EXPECT_THAT(*text, Not(HasSubstr("line")));
  struct stat facts{};
  ASSERT_EQ(::stat((run->path() / ".masks").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 0777, 0600U);
}

TEST_F(JobTest, PrintsWhatItReadsBack) {
  const auto job = load(
      "train:\n  recipe: vit\n  data: {name: mnist, batch_size: 4}\n"
      "grace: 5s\nenvs: {A: 'x y', B: '1'}\nsetup: |\n  a\n  b\n");
  ASSERT_TRUE(job.has_value()) << job.error().to_string();
  const std::string yaml = job_yaml(*job);
  const auto again = load(yaml);
  ASSERT_TRUE(again.has_value()) << again.error().to_string() << yaml;
  EXPECT_EQ(job_yaml(*again), yaml);
  EXPECT_EQ(arguments(*again), arguments(*job));
  EXPECT_EQ(again->setup, "a\nb\n");
}

TEST_F(JobTest, MakesAJobOfAProgram) {
  const auto job = program_job({"/usr/bin/env", "-i"}, {}, {});
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->name, "env");
  EXPECT_THAT(arguments(*job), ElementsAre("/usr/bin/env", "-i"));
  EXPECT_FALSE(program_job({}, {}, {}).has_value());
}

TEST(Signals, ParseByNameAndNumber) {
  EXPECT_EQ(*parse_signal("SIGTERM"), SIGTERM);
  EXPECT_EQ(*parse_signal("USR1"), SIGUSR1);
  EXPECT_EQ(*parse_signal("2"), SIGINT);
  EXPECT_FALSE(parse_signal("SIGNOPE").has_value());
  EXPECT_FALSE(parse_signal("999").has_value());
}

// What a file says in quotes is a text for the trainer too.
TEST_F(JobTest, QuotedTextsReachTheTrainerAsTexts) {
  const auto job = load(
      "train:\n  recipe: forest\n"
      "  data: {train: '{a}.csv', label: 'null', test: plain.csv}\n");
  ASSERT_TRUE(job) << job.error().to_string();
  EXPECT_THAT(
      arguments(*job),
      ElementsAre(
          "lockstep-train",
          "forest",
          "data.train=" + config::quote_yaml("{a}.csv"),
          "data.label=" + config::quote_yaml("null"),
          "data.test=plain.csv"));
  EXPECT_NE(config::quote_yaml("null"), "null");
}

}  // namespace
}  // namespace lockstep::launch
