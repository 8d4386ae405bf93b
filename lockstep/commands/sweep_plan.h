#pragma once

// What a sweep runs: the grid of nodes x processes x batch sizes x other keys,
// the baseline of one process first, and the words that make `lockstep run`
// run one configuration. Pure. Errors name the word and what is accepted.

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/launch/job.h"

namespace lockstep::commands {

// Weak: each rank keeps its batch. Strong: the batch of all ranks together
// stays, and each gets its part.
enum class Scaling { kWeak, kStrong };
std::string_view to_string(Scaling scaling);

// A key and the values it takes, in the order given, none twice.
struct SweepKey {
  std::string key;
  std::vector<std::string> values;
};
// "optim.lr=1e-3,2e-3"; commas inside brackets, braces and quotes do not part.
Result<SweepKey> parse_sweep_key(const std::string& word);
// "1,2,4" of an option: whole numbers from 1, none twice.
Result<std::vector<int>> parse_counts(
    const std::string& text,
    const std::string& option);

struct SweepSpec {
  std::vector<int> nodes = {1};
  std::vector<int> procs = {1};
  // As the file names say it; "0" alone: the sweep does not know it.
  std::vector<std::string> batch_sizes = {"0"};
  std::vector<SweepKey> keys;
  Scaling scaling = Scaling::kWeak;
};

struct Configuration {
  int nodes = 1;
  int procs = 1;
  std::string batch_size;  // of a rank (weak) or of all together (strong)
  std::string rank_batch;  // what each rank gets; empty: the job's own
  std::vector<std::pair<std::string, std::string>> keys;

  int ranks() const { return nodes * procs; }
  bool is_baseline() const { return nodes == 1 && procs == 1; }
  // "nnode-1_nproc-2_batch_size-16", then "_key-value" for each further key.
  std::string stem() const;
  // For a person: "1 x 2, batch 16, optim.lr=1e-3".
  std::string to_string() const;
  // The configuration of one process that this one is compared with.
  std::string baseline_stem() const;
};

// The baselines first, then by keys, batch size, nodes and processes. An error
// when a batch does not divide by the ranks of a strong sweep.
Result<std::vector<Configuration>> make_grid(const SweepSpec& spec);

// The key that carries the batch size: data.batch_size for the native trainer,
// batch_size for other programs.
std::string batch_key(const launch::Job& job);

// True when the key is neither the job's nor the native trainer's: then its
// value takes the place of {key} in `run` and in the values of `envs`.
bool takes_place(const launch::Job& job, const std::string& key);

// The key=value words for `lockstep run`. `fixed`: keys of one value that take
// a place. A key whose place is nowhere is an error.
Result<std::vector<std::string>> run_words(
    const launch::Job& job,
    const Configuration& configuration,
    const std::map<std::string, std::string>& fixed);

// `text` with {name} replaced by values[name]; ${name} and other braces stay.
std::string fill_places(
    const std::string& text,
    const std::map<std::string, std::string>& values);

}  // namespace lockstep::commands
