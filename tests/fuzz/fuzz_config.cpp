// Configuration: YAML text, overrides, and reading into a typed struct.

#include <string>

#include "lockstep/config/binder.h"
#include "lockstep/config/node.h"
#include "tests/fuzz/driver.h"

namespace {

using namespace lockstep;

struct Optim {
  double lr = 1e-3;
  std::string schedule = "constant";
  std::vector<double> betas = {0.9, 0.999};
  void bind(config::Binder& b) {
    b.field("lr", lr, "learning rate", config::above(0));
    b.choice("schedule", schedule, {"constant", "cosine"}, "how lr moves");
    b.field("betas", betas, "momenta");
  }
};

struct Job {
  std::string name;
  bool resume = false;
  int num_nodes = 1;
  int64_t steps = 0;
  Duration grace = std::chrono::seconds(60);
  std::optional<Money> budget;
  Bytes memory;
  std::vector<std::string> hosts;
  std::map<std::string, std::string> envs;
  config::Node train;
  Optim optim;
  void bind(config::Binder& b) {
    b.field("name", name, "name");
    b.field("resume", resume, "go on");
    b.field("num_nodes", num_nodes, "nodes", config::between(1, 1000));
    b.field("steps", steps, "steps");
    b.field("grace", grace, "time to end");
    b.field("budget", budget, "cap");
    b.field("memory", memory, "bytes");
    b.field("hosts", hosts, "hosts");
    b.field("envs", envs, "environment");
    b.raw("train", train, "trainer's own");
    b.group("optim", optim, "optimiser");
  }
};

void run(std::string_view input) {
  auto tree = config::parse_yaml(input, "fuzz.yaml");
  if (tree) {
    std::string text = config::to_yaml(*tree);
    auto again = config::parse_yaml(text, "again.yaml");
    fuzz::expect(again.has_value(), "what to_yaml prints can be read");
    fuzz::expect(
        config::to_yaml(*again) == text, "printing twice gives the same");
    config::merge(*tree, *again);
    auto job = config::read<Job>(*tree);
    if (job) {
      std::string printed = config::print_yaml(config::describe<Job>(*job));
      auto back = config::parse_yaml(printed, "printed.yaml");
      fuzz::expect(back.has_value(), "what print_yaml prints can be read");
      fuzz::expect(
          config::read<Job>(*back).has_value(),
          "a printed configuration is a configuration");
    } else {
      fuzz::expect(!job.error().to_string().empty(), "an error has a message");
    }
  }
  auto override = config::parse_override(input);
  if (override) {
    (void)config::read<Job>(*override);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return fuzz::fuzz_main(
      argc,
      argv,
      {.name = "config",
       .run = run,
       .dictionary =
           {"name: ",
            "num_nodes: ",
            "optim.lr=",
            "optim:\n  lr: ",
            "envs: {",
            "hosts: [",
            "train: ",
            "budget: 20 USD",
            "grace: 60s",
            "&a ",
            "*a",
            "<<: *a",
            "- ",
            "\n  ",
            "? ",
            ": ",
            "|\n",
            ">-\n",
            "!!str ",
            "!!binary ",
            "%YAML 1.2\n",
            "---\n",
            "...\n",
            "null",
            "~",
            "true",
            "{",
            "}",
            "[",
            "]",
            "\"",
            "'",
            "\\x",
            "\\u0000",
            "#",
            "\t",
            "\r\n",
            "\xef\xbb\xbf",
            ".nan",
            ".inf",
            "0x10",
            "=",
            "."},
       .max_size = 2048});
}
