#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/wire/frame.h"
#include "lockstep/wire/handshake.h"
#include "lockstep/wire/rendezvous.h"
#include "lockstep/wire/rendezvous_protocol.h"

namespace lockstep::wire {
namespace {

constexpr Duration kAttemptTime = std::chrono::seconds(5);
constexpr Duration kPutTime = std::chrono::seconds(30);
constexpr Duration kTransferTime = std::chrono::seconds(30);
constexpr Duration kFirstPause = std::chrono::milliseconds(5);
constexpr Duration kLongestPause = std::chrono::milliseconds(250);

os::Deadline earlier(os::Deadline deadline, Duration most) {
  return os::Deadline::after(std::min(deadline.left(), most));
}

using ConnectionPtr = std::unique_ptr<os::Connection>;

Result<ConnectionPtr> connect_once(
    os::Network& network,
    const os::Address& address,
    const Key& key,
    os::Deadline deadline) {
  os::Deadline attempt = earlier(deadline, kAttemptTime);
  LOCKSTEP_ASSIGN(ConnectionPtr connection, network.connect(address, attempt));
  LOCKSTEP_TRY(greet_as_client(*connection, key, kRendezvousPurpose, attempt));
  return connection;
}

Result<ConnectionPtr> connect_until(
    os::Network& network,
    const os::Address& address,
    const Key& key,
    os::Deadline deadline) {
  Duration pause = kFirstPause;
  while (true) {
    auto connection = connect_once(network, address, key, deadline);
    if (connection || !connection.error().retry()) {
      return connection;
    }
    if (deadline.left() <= pause) {
      return std::move(connection)
          .with_context(
              fmt::format(
                  "waiting for the rendezvous at {}", address.to_string()));
    }
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLongestPause);
  }
}

// A request has a connection of its own while it runs: a get that waits never
// blocks a put from another thread.
class Client : public Rendezvous {
 public:
  Client(
      os::Network& network,
      os::Address address,
      const Key& key,
      Duration lost,
      ConnectionPtr first)
      : network_(&network),
        address_(std::move(address)),
        key_(key),
        lost_(lost) {
    idle_.push_back(std::move(first));
  }

  Result<void> put(const std::string& key, const std::string& value) override {
    if (key.size() + value.size() + 16 > kMaxRendezvousFrame) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "the value of '{}' has {} bytes; a rendezvous takes less than {}",
              key,
              value.size(),
              kMaxRendezvousFrame));
    }
    Request request{.is_put = true, .key = key, .value = value, .patience = {}};
    LOCKSTEP_TRY(ask(request, os::Deadline::after(kPutTime)));
    return {};
  }

  Result<std::string> get(const std::string& key, os::Deadline deadline)
      override {
    while (true) {
      Request request{
          .is_put = false,
          .key = key,
          .value = {},
          .patience = std::min(deadline.left(), kMaxPatience)};
      LOCKSTEP_ASSIGN(Reply reply, ask(request, deadline));
      if (reply.found) {
        return std::move(reply.value);
      }
      if (deadline.passed()) {
        return std::move(Error(
                             ErrorCode::kTimeout,
                             fmt::format(
                                 "nobody has put '{}' at the rendezvous {}",
                                 key,
                                 address_.to_string())))
            .with_retry();
      }
    }
  }

 private:
  Result<Reply> ask(const Request& request, os::Deadline deadline) {
    if (ConnectionPtr old = take_idle()) {
      auto reply = talk(*old, request);
      if (reply) {
        give_back(std::move(old));
        return reply;
      }
      // It may have been cut while it was idle: a fresh one decides.
      if (reply.error().code() != ErrorCode::kUnavailable) {
        return reply;
      }
    }
    const os::Deadline patience = earlier(deadline, lost_);
    auto fresh = connect_until(*network_, address_, key_, patience);
    if (!fresh) {
      return deadline.passed() ? Result<Reply>(std::move(fresh).error())
                               : gone(fresh.error());
    }
    auto reply = talk(**fresh, request);
    if (reply) {
      give_back(std::move(*fresh));
    }
    return reply;
  }

  // It was there once, so nobody is about to start it.
  Error gone(const Error& reason) const {
    return Error(
        ErrorCode::kAborted,
        fmt::format(
            "the rendezvous at {} is gone, most likely with the process that "
            "served it: {}",
            address_.to_string(),
            reason.to_string()));
  }

  // The server answers within the patience; the rest is for the way.
  static Result<Reply> talk(
      os::Connection& connection,
      const Request& request) {
    os::Deadline deadline =
        os::Deadline::after(request.patience + kTransferTime);
    LOCKSTEP_TRY(write_frame(connection, format_request(request), deadline));
    LOCKSTEP_ASSIGN(
        std::string frame,
        read_frame(connection, deadline, kMaxRendezvousFrame));
    return parse_reply(frame);
  }

  ConnectionPtr take_idle() {
    std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      return nullptr;
    }
    ConnectionPtr connection = std::move(idle_.back());
    idle_.pop_back();
    return connection;
  }

  void give_back(ConnectionPtr connection) {
    std::lock_guard lock(mutex_);
    idle_.push_back(std::move(connection));
  }

  os::Network* network_;
  os::Address address_;
  Key key_;
  Duration lost_;
  std::mutex mutex_;
  std::vector<ConnectionPtr> idle_;
};

}  // namespace

Result<std::unique_ptr<Rendezvous>> connect_rendezvous(
    os::Network& network,
    const os::Address& address,
    const Key& key,
    os::Deadline deadline,
    Duration lost) {
  LOCKSTEP_ASSIGN(
      ConnectionPtr first, connect_until(network, address, key, deadline));
  return std::make_unique<Client>(
      network, address, key, lost, std::move(first));
}

}  // namespace lockstep::wire
