#pragma once

// One sitting of the trainer from command to exit code: reads the rank
// environment, joins the group, opens the run directory, builds the recipe,
// trains or tests, and closes. Failures end as one line on stderr, an `exit`
// event and a documented code.

#include "lockstep/recipes/command_line.h"

namespace lockstep::recipes {

int run_session(const Command& command);

}  // namespace lockstep::recipes
