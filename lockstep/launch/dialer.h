#pragma once

// Finds the head among the addresses it offers: dials them one after the other
// with a short lead each, and takes the first that answers the hand-shake with
// the run's key. So a name that means another machine here does no harm, and an
// address that nobody answers costs little. Nothing blocks. One thread.

#include <poll.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"
#include "lockstep/wire/channel.h"

namespace lockstep::launch {

class Dialer {
 public:
  struct Found {
    std::unique_ptr<wire::Channel> channel;
    std::string address;  // that was dialled, with the port
  };

  Dialer(std::vector<std::string> addresses, const Key& key)
      : addresses_(std::move(addresses)), key_(key) {}

  // Descriptors to poll, and for how long at most.
  void watch(std::vector<pollfd>& sources) const;
  Duration wait() const;
  // Call after poll(). The channel is ready.
  std::optional<Found> advance();
  // For how long the head's machine has answered that nobody listens there:
  // the head is gone. Our own loopback does not count.
  Duration refused() const;
  // What went wrong last, for the message of who gives up.
  const std::string& trouble() const { return trouble_; }

 private:
  struct Try {
    std::unique_ptr<wire::Channel> channel;
    std::string address;
  };
  void dial(const std::string& address);
  void note_trouble(const std::string& address, const std::string& what);
  std::vector<std::string> addresses_;
  Key key_;
  std::vector<Try> tries_;
  size_t next_ = 0;  // address to dial
  os::Instant next_dial_{};
  os::Instant round_end_{};
  std::string trouble_;
  std::optional<os::Instant> refused_since_;
};

// The address of our end of a socket and the interface that has it.
struct OwnEnd {
  std::string address;
  std::string interface;
};
OwnEnd own_end(int descriptor);

}  // namespace lockstep::launch
