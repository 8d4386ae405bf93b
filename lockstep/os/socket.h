#pragma once

// Byte streams behind an interface: TCP and Unix sockets, or pipes in memory
// in tests. A Connection is used by one reader and one writer thread at a
// time; close() may come from any thread and ends both. Every call that can
// block takes a deadline (kTimeout when it passes); a peer that is gone gives
// kUnavailable.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"

namespace lockstep::os {

// "10.0.0.1:29500", "localhost:0" or "unix:/run/x.sock" ("unix:@x" abstract).
struct Address {
  std::string host;  // empty for a Unix socket
  uint16_t port = 0;
  std::string unix_path;
  std::string to_string() const;
};
Result<Address> parse_address(const std::string& text);

class Connection {
 public:
  virtual ~Connection() = default;
  // At least one byte, or 0 at the end of the stream.
  virtual Result<size_t> read_some(
      std::span<std::byte> buffer,
      Deadline deadline) = 0;
  virtual Result<void> write_all(
      std::span<const std::byte> data,
      Deadline deadline) = 0;
  virtual void close() = 0;
  virtual std::string peer() const = 0;  // for messages
  // The descriptor of a real socket; -1 for a fake.
  virtual int descriptor() const { return -1; }
  // Fills the whole buffer or fails (kUnavailable when the stream ends).
  Result<void> read_all(std::span<std::byte> buffer, Deadline deadline);
};

class Listener {
 public:
  virtual ~Listener() = default;
  virtual Result<std::unique_ptr<Connection>> accept(Deadline deadline) = 0;
  virtual Address address() const = 0;  // with the port that was chosen
  virtual void close() = 0;             // accept() returns kAborted
};

class Network {
 public:
  virtual ~Network() = default;
  // Port 0 lets the system choose.
  virtual Result<std::unique_ptr<Listener>> listen(const Address& address) = 0;
  virtual Result<std::unique_ptr<Connection>> connect(
      const Address& address,
      Deadline deadline) = 0;
};

Network& real_network();  // TCP with TCP_NODELAY, and Unix sockets

// In-memory network: connections are pairs of bounded pipes. cut() makes all
// connections fail as if the cable were pulled.
std::unique_ptr<Network> make_fake_network();
void cut(Network& fake);

// Descriptors over a Unix socket (SCM_RIGHTS), for shared memory.
Result<void> send_descriptor(Connection& connection, int descriptor);
Result<int> receive_descriptor(Connection& connection, Deadline deadline);

}  // namespace lockstep::os
