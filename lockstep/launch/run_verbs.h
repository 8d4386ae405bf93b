#pragma once

// What the far end on a head answers about runs there: their state, what their
// files gained, stop. `directory` names the run directory on that machine.
//
//   state  {directory}                     -> {state, step}
//   tail   {directory, offsets, wait}      -> {state, pieces, more}
//   files  {directory}                     -> {files: [{name, size, time}]}
//   fetch  {directory, name, offset}       -> {data, size}
//   stop   {directory, now}                -> {running}
//   renting {directory}                    -> {client}
//   forget {directory}                     -> {}
//
// renting says that the client which rents machines is there, and tells whether
// it is its turn (renting.h).
// forget removes a node's folder (nodes/<id>) whose files the asker has.
// `offsets` are the bytes of each followed file that the asker has; a piece is
// {name, offset, data}. With nothing new the answer comes after `wait`
// milliseconds. At most reach::kPiece bytes travel in one answer.

#include <string>
#include <vector>

#include "lockstep/os/file.h"
#include "lockstep/reach/far_end.h"
#include "lockstep/record/run_directory.h"

namespace lockstep::launch {

reach::Handlers run_verbs();

// Files that only grow and are mirrored while a run goes on, as names below its
// directory.
std::vector<std::string> followed_files(const record::RunDirectory& run);
// False for names that could leave the directory.
bool is_plain_name(const std::string& name);

}  // namespace lockstep::launch
