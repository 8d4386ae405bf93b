#pragma once

// What is known about a job from its probes and its past runs, and how well
// earlier predictions came true. Reads run directories; decides nothing.

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/commands/probe_story.h"
#include "lockstep/launch/job.h"
#include "lockstep/os/file.h"

namespace lockstep::commands {

struct PastRun {
  std::string machine;  // the first host, or "local"
  int nodes = 1;
  int ranks = 1;                // of a node
  double dollars_per_hour = 0;  // of one node; 0: no price was known
  double started = 0;           // Unix seconds
  double setup = 0;             // until ranks began
  double end = 0;               // after the last validation and checkpoint
  bool finished = false;        // to its own end, and well
  double seconds = 0;           // of a finished one
  ProbeFigures figures;
  os::Path run;
};

// What must be equal for runs to be of one job: all of it but where it runs,
// for how long at most, what it is called and what a probe rehearses.
std::string job_identity(const launch::Job& job);

// Runs of this job under the roots that show iterations, the oldest first. A
// root that is not there has none; a run that cannot be read is passed over.
std::vector<PastRun> find_past_runs(
    const std::vector<os::Path>& roots,
    const launch::Job& job);

// The roots below a folder of benches: benches/ID/runs/CANDIDATE.
std::vector<os::Path> bench_roots(const os::Path& benches);

// A prediction of the whole run, kept to be compared with what happened.
struct KeptPrediction {
  double time = 0;  // Unix seconds, when it was made
  std::string job;  // its identity, as a checksum
  std::string machine;
  int nodes = 1;
  double seconds = 0;
  double dollars = 0;
};
// predictions.jsonl in the runs folder. Lines that cannot be read are passed
// over.
std::vector<KeptPrediction> read_predictions(const os::Path& file);
Result<void> keep_predictions(
    const os::Path& file,
    const std::vector<KeptPrediction>& predictions);

// The last finished run that began after a prediction for its machine and node
// count, against the last such prediction.
struct Comparison {
  std::string machine;
  int nodes = 1;
  double predicted = 0;  // seconds
  double happened = 0;
  double error() const { return predicted / happened - 1; }
};
std::vector<Comparison> compare_predictions(
    const std::vector<KeptPrediction>& predictions,
    const std::vector<PastRun>& runs,
    const std::string& job);

// Short, the same for the same text.
std::string checksum_of(const std::string& text);

}  // namespace lockstep::commands
