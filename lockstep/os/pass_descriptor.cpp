#include "lockstep/os/socket.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "lockstep/os/real_connection.h"

namespace lockstep::os {
namespace {

constexpr Duration kDescriptorTimeout = std::chrono::seconds(30);

Result<int> socket_of(const Connection& connection) {
  if (connection.descriptor() < 0) {
    return Error(
        ErrorCode::kInvalidInput,
        "descriptors travel only over a real Unix socket");
  }
  return connection.descriptor();
}

}  // namespace

Result<void> send_descriptor(Connection& connection, int descriptor) {
  LOCKSTEP_ASSIGN(int socket, socket_of(connection));
  char payload = 'd';
  iovec part{.iov_base = &payload, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  Deadline deadline = Deadline::after(kDescriptorTimeout);
  while (::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) {
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN) {
      return os_error(
          fmt::format("sending a descriptor to {}", connection.peer()), errno);
    }
    if (!wait_ready(socket, POLLOUT, deadline)) {
      return os_error(
          fmt::format("sending a descriptor to {}", connection.peer()),
          ETIMEDOUT);
    }
  }
  return {};
}

Result<int> receive_descriptor(Connection& connection, Deadline deadline) {
  LOCKSTEP_ASSIGN(int socket, socket_of(connection));
  std::string what =
      fmt::format("receiving a descriptor from {}", connection.peer());
  char payload = 0;
  iovec part{.iov_base = &payload, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t count = 0;
  while ((count = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC)) < 0) {
    if (errno == EINTR) {
      continue;
    }
    if (errno != EAGAIN) {
      return os_error(what, errno);
    }
    if (!wait_ready(socket, POLLIN, deadline)) {
      return os_error(what, ETIMEDOUT);
    }
  }
  if (count == 0) {
    return Error(ErrorCode::kUnavailable, what + ": the connection is closed");
  }
  // The padding of the buffer has room for a second one: take it too, so
  // that it can be closed.
  std::vector<Descriptor> received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    size_t bytes = header->cmsg_len - CMSG_LEN(0);
    for (size_t at = 0; at + sizeof(int) <= bytes; at += sizeof(int)) {
      int value = -1;
      std::memcpy(&value, CMSG_DATA(header) + at, sizeof(int));
      received.emplace_back(value);
    }
  }
  if (received.size() != 1 || payload != 'd') {
    return Error(ErrorCode::kCorrupt, what + ": the message has none");
  }
  return received[0].release();
}

}  // namespace lockstep::os
