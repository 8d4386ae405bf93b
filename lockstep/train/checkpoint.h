#pragma once

// The whole state of a run in one safetensors file: parameters and buffers
// under their plain names (PyTorch reads them), everything else under
// "lockstep.", progress as metadata. Rank 0 reads and writes; the others get
// the state by broadcast, so only its disk matters. A failed write leaves the
// old file whole. Throws TrainError, naming the file.

#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/collective/communicator.h"
#include "lockstep/parallel/ddp.h"

namespace lockstep::train {

struct Progress {
  int64_t step = 0;              // steps done
  int64_t epoch = 0;             // the one under way
  int64_t samples_in_epoch = 0;  // over all ranks
  std::optional<double> best{};  // of the recipe's metric
  double seconds = 0;            // trained, over all sittings
};

struct CheckpointState {
  std::string recipe;
  std::string config;  // resolved, as YAML
  parallel::NamedTensors tensors;
  parallel::NamedTensors extra;
};

void save_checkpoint(
    const std::filesystem::path& path,
    const CheckpointState& state,
    const Progress& progress);

// Gives `link` the content that `path` has now, atomically and without a copy.
void link_checkpoint(
    const std::filesystem::path& path,
    const std::filesystem::path& link);

// Fills the tensors in place. Every tensor must be there with its shape and
// type; a file of another recipe, or with missing or unknown tensors, is
// refused with their names. `weights_only` leaves `extra` alone.
Progress load_checkpoint(
    const std::filesystem::path& path,
    const CheckpointState& state,
    bool weights_only = false);

// Everybody gets rank 0's tensors and progress.
void share_state(
    const CheckpointState& state,
    Progress& progress,
    collective::Communicator& group);

}  // namespace lockstep::train
