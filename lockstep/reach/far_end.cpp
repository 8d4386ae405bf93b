#include "lockstep/reach/far_end.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "lockstep/base/log.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/reach/content.h"
#include "lockstep/reach/facts.h"
#include "lockstep/reach/far_files.h"
#include "lockstep/reach/far_setup.h"
#include "lockstep/reach/message.h"
#include "lockstep/reach/probe.h"
#include "lockstep/reach/prune.h"
#include "lockstep/reach/stream.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;

bool has_gone(int descriptor) {
  pollfd entry{.fd = descriptor, .events = POLLRDHUP, .revents = 0};
  return ::poll(&entry, 1, 0) > 0 &&
         (entry.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

Handlers own_handlers(const os::Path& home, FarFiles& files, int input) {
  Handlers handlers;
  handlers["hello"] = [](const json&) -> Result<json> {
    return json{
        {"version", version()}, {"time", os::real_clock().unix_seconds()}};
  };
  handlers["facts"] = [home](const json&) -> Result<json> {
    return machine_facts(home);
  };
  handlers["have"] = [&files](const json& r) { return files.have(r); };
  handlers["put"] = [&files](const json& r) { return files.put(r); };
  handlers["commit"] = [&files](const json& r) { return files.commit(r); };
  handlers["manifest"] = [&files](const json& r) { return files.manifest(r); };
  handlers["sync"] = [&files](const json& r) { return files.sync(r); };
  handlers["read"] = [&files](const json& r) { return files.read(r); };
  handlers["free"] = [&files](const json& r) { return files.free(r); };
  handlers["setup"] = [home, input](const json& r) {
    return run_far_setup(home, r, [input] { return has_gone(input); });
  };
  return handlers;
}

Result<json> answer(const Handlers& handlers, const Request& request) {
  const auto found = handlers.find(request.verb);
  if (found == handlers.end()) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("this lockstep does not know '{}'", request.verb));
  }
  // A message of the right shape with wrong kinds inside makes json throw.
  try {
    return found->second(request.arguments);
  } catch (const std::exception& error) {
    return Error(
        ErrorCode::kInternal,
        fmt::format("'{}' failed: {}", request.verb, error.what()));
  }
}

}  // namespace

int serve_far_end(const MoreHandlers& more) {
  std::signal(SIGPIPE, SIG_IGN);
  // Frames have descriptors of their own; what a handler prints by mistake
  // goes to standard error and cannot get between them.
  os::Descriptor in(::fcntl(0, F_DUPFD_CLOEXEC, 3));
  os::Descriptor out(::fcntl(1, F_DUPFD_CLOEXEC, 3));
  const os::Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!in || !out || !nothing) {
    std::perror("lockstep far-end");
    return 1;
  }
  ::dup2(nothing.get(), 0);
  ::dup2(2, 1);
  const int input = in.get();
  const auto stream =
      make_stream(std::move(in), std::move(out), "the near end");
  const os::Path home = lockstep_home();
  // The folder that holds this very program.
  std::error_code ignored;
  mark_used(
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path());
  for (const char* name : {"bin", "sets", "incoming"}) {
    prune(home / name);
  }
  FarFiles files(home);
  Handlers handlers = own_handlers(home, files, input);
  Probes probes;
  probes.add_to(handlers);
  for (const auto& [verb, handler] : more(input)) {
    handlers[verb] = handler;
  }
  while (true) {
    const auto request = read_request(*stream, os::Deadline::never());
    if (!request) {
      const bool ended = request.error().code() == ErrorCode::kUnavailable;
      if (!ended) {
        fmt::print(stderr, "lockstep: {}\n", request.error().to_string());
      }
      return ended ? 0 : 1;
    }
    if (!write_answer(
            *stream, answer(handlers, *request), os::Deadline::never())) {
      return 0;
    }
  }
}

}  // namespace lockstep::reach
