#pragma once

// Messages between processes of one run that may sit on different machines:
// keyed, numbered, non-blocking. After the hand-shake of handshake.h both ends
// derive a key for each direction from the challenges; a frame is
//   u32 length, payload, 16 bytes of HMAC-SHA256(direction key, number,
//   payload)
// so that nobody can put in, repeat, reorder or change one. Any violation makes
// the channel fail for good with kPermission and a reason for the log.
//
// A Channel owns a non-blocking socket. The owner polls descriptor() for
// reading, and for writing while wants_to_write(). One thread.

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::wire {

enum class ChannelRole { kClient, kServer };

class Channel {
 public:
  // `socket` is connected (or connecting); the hand-shake begins at once.
  // `purpose` as in handshake.h.
  static std::unique_ptr<Channel> make(
      os::Descriptor socket,
      ChannelRole role,
      const Key& key,
      std::string purpose);
  virtual ~Channel() = default;

  virtual int descriptor() const = 0;
  // The hand-shake is done: messages may be received.
  virtual bool ready() const = 0;
  // Queues a message (also before ready()) and writes what the socket takes.
  virtual Result<void> send(std::string_view payload) = 0;
  virtual bool wants_to_write() const = 0;
  // Bytes queued and not yet taken by the socket: the sender's way to hold
  // back.
  virtual size_t queued() const = 0;
  // Reads and writes what is possible now and appends whole messages. An
  // error: the peer is gone (kUnavailable) or broke a rule (kPermission);
  // messages that came before it are still appended.
  virtual Result<void> pump(std::vector<std::string>& messages) = 0;
  virtual std::string peer() const = 0;  // "10.0.0.2:4711"
};

}  // namespace lockstep::wire
