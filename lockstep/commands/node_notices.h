#pragma once

// What the cloud tells a machine about its own end, for its agent: a thread
// asks the metadata service every two seconds, and the function answers at
// once with what stands. Where there is no such service, nothing is ever told.

#include "lockstep/launch/agent_main.h"

namespace lockstep::commands {

launch::NoticeMaker node_notices();

}  // namespace lockstep::commands
