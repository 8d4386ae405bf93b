#pragma once

// What a run is, in words: its command line, its program, and the plan that
// --dry-run prints.

#include <string>
#include <vector>

#include "lockstep/commands/run_options.h"
#include "lockstep/launch/rank_plan.h"

namespace lockstep::commands {

// The command that repeats this run, without secrets.
std::string repeat_command(const launch::Job& job, const Context& context);

// "python3 train.py", "lockstep-train dcgan".
std::string program_name(
    const launch::Job& job,
    const std::vector<std::string>& argv);

// "id: 4 ranks on 2 hosts of python3 train.py".
std::string headline(
    const std::string& id,
    int world_size,
    size_t hosts,
    const std::string& program);

void print_plan(
    const ResolvedJob& priced,
    const launch::RankPlan& plan,
    const std::vector<std::string>& argv,
    OutputFormat format);

}  // namespace lockstep::commands
