// `lockstep far-end`: what a node answers over ssh. Modules that own verbs give
// them here.

#include "lockstep/reach/far_end.h"

#include "lockstep/commands/command.h"
#include "lockstep/launch/node_verbs.h"
#include "lockstep/launch/run_verbs.h"

namespace lockstep::commands {

int far_end_main() {
  return reach::serve_far_end([](int caller) {
    reach::Handlers handlers = launch::node_verbs(own_program(), caller);
    handlers.merge(launch::run_verbs());
    return handlers;
  });
}

}  // namespace lockstep::commands
