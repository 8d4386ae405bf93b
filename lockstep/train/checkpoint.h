#pragma once

// The whole state of a run in one safetensors file: parameters and buffers
// under their plain names (PyTorch reads them), everything else under
// "lockstep.", progress as metadata. A failed write leaves the old file whole.
// What several ranks do together, and folders of shards: checkpoint_group.h.
// Throws TrainError, naming the file.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/collective/communicator.h"
#include "lockstep/parallel/ddp.h"
#include "lockstep/record/safetensors.h"

namespace lockstep::train {

class CheckpointReader;

struct Progress {
  int64_t step = 0;              // steps done
  int64_t epoch = 0;             // the one under way
  int64_t samples_in_epoch = 0;  // over all ranks
  std::optional<double> best{};  // of the recipe's metric
  double seconds = 0;            // trained, over all sittings
  int64_t since_best = 0;        // validations that were no better
};

struct CheckpointState {
  std::string recipe;
  std::string config;  // resolved, as YAML
  parallel::NamedTensors tensors;
  parallel::NamedTensors extra;
  // Of the tensors above that are this rank's part of a whole.
  parallel::Placements placements{};
  std::string run{};  // whose it is; all shards of one checkpoint have the same
  std::vector<std::string> classes{};  // of the labels, where those have names
  std::string model{};  // what no tensor's shape shows of it: "heads=3"
};

// What its tensors take, the parts of all ranks together: near the size of the
// file.
uint64_t whole_bytes(const CheckpointState& state);

void save_checkpoint(
    const std::filesystem::path& path,
    const CheckpointState& state,
    const Progress& progress);

// Gives `link` the content that `path` (a file or a folder of shards) has now,
// atomically and without a copy.
void link_checkpoint(
    const std::filesystem::path& path,
    const std::filesystem::path& link);

// Fills the tensors in place, from a file or a folder of shards. Every tensor
// must be there with its shape and type; a file of another recipe, of
// other classes, or with missing or unknown tensors, is refused by name.
// `weights_only` leaves `extra` alone.
Progress load_checkpoint(
    const std::filesystem::path& path,
    const CheckpointState& state,
    bool weights_only = false);

// Whether the run of this name wrote it.
bool is_checkpoint_of(
    const std::filesystem::path& path,
    const std::string& run);

// Everybody gets rank 0's tensors (those that are not in parts) and progress.
void share_state(
    const CheckpointState& state,
    Progress& progress,
    collective::Communicator& group);

// The parts of which the above, and checkpoints of a group, are made.
struct FileTensor {
  std::string name;       // in the state
  std::string file_name;  // in the file
  at::Tensor tensor;
};
std::vector<FileTensor> in_file(
    const CheckpointState& state,
    bool weights_only = false);
record::Metadata describe(
    const CheckpointState& state,
    const Progress& progress);
// Refuses what load_checkpoint refuses; nothing is filled yet.
Progress check_fits(
    const CheckpointReader& reader,
    const CheckpointState& state,
    bool weights_only);
void copy_in(const at::Tensor& tensor, const at::Tensor& source);
// Where a checkpoint is written before replace_checkpoint() puts it in place.
std::filesystem::path unfinished(const std::filesystem::path& path);
void replace_checkpoint(
    const std::filesystem::path& made,
    const std::filesystem::path& path);

}  // namespace lockstep::train
