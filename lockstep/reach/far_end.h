#pragma once

// The other end of one ssh session: `lockstep far-end`, a process on the node
// that answers requests over its standard streams, in order, and goes when the
// session does. ssh has proved who both are, so there is no key here.
//
// A request and an answer are frames of CBOR: {"verb", ...} and {"ok": ...} or
// {"error": {code, message, fix}}; bytes travel as CBOR byte strings of at most
// kPiece. Verbs that reach gives: facts, have, put, commit, manifest, sync,
// setup, read, free; hello {version, time}; tools, listen and dial of probe.h.
// Others (start-agent, start-head, tail, stop) are added by
// the modules that own them, so this one knows nothing of runs.
//
// What `facts` answers: hostname user home lockstep_home program (of the far
// end) version architecture kernel libc os cores memory gpus [{name, memory}]
// addresses ["10.0.0.1", ...] time (Unix seconds) free (bytes where
// lockstep_home is) shm (bytes of /dev/shm; 0: there is none) environment
// {name: value}. `read` {path, offset, limit} answers {data, size}.

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/result.h"

namespace lockstep::reach {

inline constexpr size_t kPiece = 1 << 20;

using Handler = std::function<Result<nlohmann::json>(const nlohmann::json&)>;
using Handlers = std::map<std::string, Handler>;

// Verbs of other modules. `caller` ends (poll: POLLRDHUP or POLLHUP) when the
// session does: a verb that takes long gives up then.
using MoreHandlers = std::function<Handlers(int caller)>;

// Serves standard input and output until it ends; the exit code.
int serve_far_end(const MoreHandlers& more);

}  // namespace lockstep::reach
