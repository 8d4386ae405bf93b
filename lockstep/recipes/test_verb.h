#pragma once

// The verb 'test': a checkpoint on the held-out split, with what it was trained
// with unless the command line says otherwise. All ranks together; rank 0
// prints and writes.

#include <string>

#include "lockstep/config/node.h"
#include "lockstep/recipes/command_line.h"
#include "lockstep/recipes/registry.h"

namespace lockstep::recipes {

// The configuration in the checkpoint that the command names, as YAML; empty
// when it has none, is of another recipe or cannot be read here.
std::string trained_config(const Command& command);
// The same without what was about that run: machines, limits, folders, and
// files of labels, which are of the tables of that run.
Result<config::Node> trained_base(
    const std::string& trained,
    const Command& command);

// What keeps this rank from reading the checkpoint for `recipe`, in words;
// empty: nothing.
std::string checkpoint_failure(
    const std::string& path,
    const std::string& recipe);
// The checkpoint that the command line names; the last one counts.
std::string named_checkpoint(const Command& command);

// The exit code; throws TrainError.
int test_checkpoint(
    const Prepared& prepared,
    train::Recipe& recipe,
    const train::Context& context);

}  // namespace lockstep::recipes
