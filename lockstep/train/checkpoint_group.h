#pragma once

// Checkpoints of a group: what all ranks do together. A whole one is a file
// that rank 0 writes and reads; only its disk matters. A sharded one is a
// folder into which every rank writes its own parts; it appears whole or not at
// all. Both resume any number of ranks, replicated or sharded. All ranks call;
// throws TrainError.

#include <filesystem>
#include <string>

#include "lockstep/train/checkpoint.h"

namespace lockstep::train {

// `format`: auto, full or sharded. auto: sharded when the state is and every
// rank sees rank 0's folder.
bool choose_sharded(
    const std::string& format,
    const std::filesystem::path& folder,
    const CheckpointState& state,
    collective::Communicator& group);

// Where a rank has no say in `state` (its own part of each tensor), the parts
// are collected on rank 0 first unless `sharded`.
void save_together(
    const std::filesystem::path& path,
    const CheckpointState& state,
    const Progress& progress,
    bool sharded,
    collective::Communicator& group);

// Rank 0 reads, checks everything, then fills the state of all ranks.
Progress restore_together(
    const std::filesystem::path& path,
    const CheckpointState& state,
    collective::Communicator& group,
    bool weights_only = false);

}  // namespace lockstep::train
