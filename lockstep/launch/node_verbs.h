#pragma once

// What the far end on a node answers when a run is to start there.
//
//   check  {program, workdir, path}  -> {}      cannot be run: an error
//   mount  {target, name, workdir}   -> {path}  a link in workdir to target
//   head   {spec}                    -> {port, addresses}
//   agent  {spec}                    -> {}      once it joined its head
//
// Specs hold the run's key: they go to the started process's standard input.

#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/file.h"
#include "lockstep/reach/far_end.h"

namespace lockstep::launch {

// `own_program` is the lockstep binary on that node; `caller` ends when whoever
// asks is gone (reach/far_end.h), and what it asked for is given up.
reach::Handlers node_verbs(os::Path own_program, int caller);

// What a head says when it listens: "listening PORT address ...".
struct HeadAnswer {
  int port = 0;
  std::vector<std::string> addresses;
};
// "failed: reason" and anything else is an error.
Result<HeadAnswer> parse_head_line(const std::string& line);

}  // namespace lockstep::launch
