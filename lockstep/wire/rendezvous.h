#pragma once

// How ranks find each other: a small table of put and get. The coordinator
// serves it (LOCKSTEP_COORDINATOR), or rank 0 on MASTER_PORT; the trainer also
// has it over torchrun's TCPStore and over MPI. Values are small (addresses,
// keys). Safe from any thread.

#include <memory>
#include <string>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/os/socket.h"

namespace lockstep::wire {

class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // The last put wins.
  virtual Result<void> put(
      const std::string& key,
      const std::string& value) = 0;
  // Waits until the key is there.
  virtual Result<std::string> get(
      const std::string& key,
      os::Deadline deadline) = 0;
};

// Serves a table on its own thread until destroyed. A connection without the
// key, garbage or a half-open flood never disturbs the others.
class RendezvousServer {
 public:
  static Result<std::unique_ptr<RendezvousServer>>
  start(os::Network& network, const os::Address& address, const Key& key);
  virtual ~RendezvousServer() = default;
  virtual os::Address address() const = 0;
  virtual Rendezvous& table() = 0;  // direct access, in this process
  // Serves on until every client has left, at most until the deadline; whether
  // all have. For a server whose process is about to end: what it has put may
  // be the reason that the others are about to tell.
  virtual bool drain(os::Deadline deadline) = 0;
};

// How long a table that was there and is gone is looked for.
inline constexpr Duration kLostRendezvous = std::chrono::seconds(10);

// Connects (retrying until the deadline, since the server may start later). A
// server that is lost after that may come back at its address within `lost`;
// then puts and gets fail, whatever their own deadline (kAborted).
Result<std::unique_ptr<Rendezvous>> connect_rendezvous(
    os::Network& network,
    const os::Address& address,
    const Key& key,
    os::Deadline deadline,
    Duration lost = kLostRendezvous);

// One table for ranks that are threads of this process.
std::shared_ptr<Rendezvous> make_local_rendezvous();

}  // namespace lockstep::wire
