#include "lockstep/launch/ports.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "lockstep/os/descriptor.h"

namespace lockstep::launch {

Result<int> free_port(int first, int last) {
  for (int port = first; port <= last; ++port) {
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<uint16_t>(port));
    const os::Descriptor socket(
        ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    socklen_t size = sizeof place;
    auto* generic = reinterpret_cast<sockaddr*>(&place);
    if (socket && ::bind(socket.get(), generic, size) == 0 &&
        ::getsockname(socket.get(), generic, &size) == 0) {
      return ntohs(place.sin_port);
    }
  }
  return Error(
             ErrorCode::kUnavailable,
             first == 0 ? std::string("no port is free")
                        : fmt::format("no port of {}-{} is free", first, last))
      .with_fix("end what listens there, or give another range");
}

}  // namespace lockstep::launch
