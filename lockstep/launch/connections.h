#pragma once

// The connections of a hub: one listener, one epoll. A new one is a stranger
// until admit(); strangers have two seconds for the hand-shake and their first
// message, and 256 places: beyond those the one that was silent longest goes.
// What is refused is logged (refusals.h). One thread; nothing here blocks but
// serve(), for as long as it is told.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "lockstep/base/id.h"
#include "lockstep/base/result.h"
#include "lockstep/launch/refusals.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/wire/channel.h"

namespace lockstep::launch {

struct ListenOptions {
  std::string address = "0.0.0.0";
  int first_port = 0;  // 0: any free one
  int last_port = 0;
};

// Who uses the connections. Both calls come from inside of serve().
struct ConnectionUser {
  // A message, which may lead to close() or refuse() of its sender.
  std::function<void(uint64_t id, const std::string& bytes)> take;
  // An admitted one ended by itself, and why; it is gone.
  std::function<void(uint64_t id, const std::string& why)> ended;
};

class Connections {
 public:
  static Result<std::unique_ptr<Connections>> open(
      const ListenOptions& options,
      const Key& key,
      const os::Clock& clock,
      ConnectionUser user);

  int port() const { return port_; }
  int descriptor() const { return epoll_.get(); }
  // Takes what came, waiting for it at most this long.
  void serve(Duration wait);

  // Numbers of connections are never used again; 0 is none.
  bool has(uint64_t id) const { return peers_.contains(id); }
  const std::string& address(uint64_t id) const;
  size_t queued(uint64_t id) const;  // bytes that it did not take yet
  // kInvalidInput for what is too large; one that is gone is found by serve().
  Result<void> send(uint64_t id, const std::string& bytes);
  void admit(uint64_t id);
  void close(uint64_t id);
  void refuse(uint64_t id, const std::string& why);

  size_t admitted() const { return peers_.size() - strangers_.size(); }
  size_t refused() const { return refusals_.count(); }

 private:
  struct Peer {
    std::unique_ptr<wire::Channel> channel;
    os::Instant since;
    std::string address;
    bool writing = false;  // the epoll waits for room, too
  };

  Connections(
      const Key& key,
      const os::Clock& clock,
      ConnectionUser user,
      os::Descriptor listener,
      int port);
  void watch_listener(bool on);
  void accept_all();
  void add(os::Descriptor socket);
  void pump(uint64_t id);
  void watch_writing(uint64_t id, Peer& peer);
  void look_at_strangers();

  Key key_;
  const os::Clock& clock_;
  ConnectionUser user_;
  os::Descriptor listener_;
  int port_;
  os::Descriptor epoll_;
  std::map<uint64_t, Peer> peers_;  // by number, oldest first
  std::set<uint64_t> strangers_;
  uint64_t last_ = 0;
  bool accepting_ = true;
  std::optional<os::Instant> looked_;
  Refusals refusals_;
};

}  // namespace lockstep::launch
