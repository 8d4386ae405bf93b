#pragma once

// The mirror of a run that lives on another machine, over a session with its
// head. What is here already is known by the sizes of our files, so a mirror
// goes on where the last one stopped, and bytes are never fetched twice. One
// process mirrors a run at a time (a lock in the directory); the others follow
// its files. One thread.

#include <functional>
#include <memory>

#include "lockstep/launch/follow.h"
#include "lockstep/reach/session.h"

namespace lockstep::launch {

// Reaches the head; called again when a session broke.
using Connect = std::function<Result<std::unique_ptr<reach::Session>>()>;

// `state` is our state.json, with where the run lives. `session` may be one
// that is open already. Nothing is reached yet.
std::unique_ptr<Mirror> open_mirror(
    const record::RunDirectory& run,
    RunStateFile state,
    Connect connect,
    std::unique_ptr<reach::Session> session = nullptr);

}  // namespace lockstep::launch
