#include "lockstep/wire/rendezvous.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/wire/frame.h"
#include "lockstep/wire/handshake.h"
#include "lockstep/wire/rendezvous_protocol.h"

namespace lockstep::wire {
namespace {

constexpr Duration kGreetingTime = std::chrono::seconds(5);
constexpr Duration kReplyTime = std::chrono::seconds(30);
constexpr Duration kAcceptPause = std::chrono::milliseconds(10);
constexpr size_t kMaxStrangers = 256;  // connections not yet greeted

class Table : public Rendezvous {
 public:
  Result<void> put(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
    return {};
  }

  Result<std::string> get(const std::string& key, os::Deadline deadline)
      override {
    std::unique_lock lock(mutex_);
    while (true) {
      if (auto found = values_.find(key); found != values_.end()) {
        return found->second;
      }
      if (stopped_) {
        return Error(ErrorCode::kAborted, "the rendezvous has ended");
      }
      if (deadline.passed()) {
        return std::move(Error(
                             ErrorCode::kTimeout,
                             fmt::format("nobody has put '{}'", key)))
            .with_retry();
      }
      changed_.wait_for(lock, deadline.left());
    }
  }

  // Frees every waiter.
  void stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  bool stopped_ = false;
};

// A connection and the thread that serves it.
struct Session {
  std::unique_ptr<os::Connection> connection;
  std::thread thread;
  bool greeted = false;
  bool evicted = false;
  bool done = false;  // the last thing its thread writes
  bool stranger() const { return !greeted && !evicted && !done; }
};

class Server : public RendezvousServer {
 public:
  Server(std::unique_ptr<os::Listener> listener, const Key& key)
      : listener_(std::move(listener)), key_(key) {
    acceptor_ = std::thread([this] { accept_loop(); });
  }

  ~Server() override {
    stopping_ = true;
    listener_->close();
    acceptor_.join();
    table_.stop();
    // No session can be added now, and none is removed by its own thread.
    for (const auto& session : sessions_) {
      session->connection->close();
    }
    for (const auto& session : sessions_) {
      session->thread.join();
    }
  }

  os::Address address() const override { return listener_->address(); }
  Rendezvous& table() override { return table_; }

  bool drain(os::Deadline deadline) override {
    std::unique_lock lock(mutex_);
    while (std::ranges::any_of(sessions_, [](const auto& session) {
      return session->greeted && !session->done;
    })) {
      if (deadline.passed()) {
        return false;
      }
      ended_.wait_for(lock, deadline.left());
    }
    return true;
  }

 private:
  void accept_loop() {
    while (!stopping_) {
      auto accepted = listener_->accept(os::Deadline::never());
      if (accepted) {
        add(std::move(*accepted));
      } else if (accepted.error().code() == ErrorCode::kAborted) {
        return;
      } else if (accepted.error().code() != ErrorCode::kTimeout) {
        // Out of descriptors, most likely: strangers go first.
        {
          std::lock_guard lock(mutex_);
          evict_oldest_stranger();
          reap();
        }
        std::this_thread::sleep_for(kAcceptPause);
      }
    }
  }

  void add(std::unique_ptr<os::Connection> connection) {
    std::lock_guard lock(mutex_);
    reap();
    size_t strangers = 0;
    for (const auto& session : sessions_) {
      strangers += session->stranger() ? 1 : 0;
    }
    if (strangers >= kMaxStrangers) {
      evict_oldest_stranger();
    }
    auto session = std::make_shared<Session>();
    session->connection = std::move(connection);
    sessions_.push_back(session);
    session->thread = std::thread([this, raw = session.get()] { serve(*raw); });
  }

  // An honest client is greeted in no time, so under a flood the one that
  // has been silent longest is the one to lose; if honest, it tries again.
  void evict_oldest_stranger() {
    for (const auto& session : sessions_) {
      if (session->stranger()) {
        session->connection->close();
        session->evicted = true;
        return;
      }
    }
  }

  void reap() {
    std::erase_if(sessions_, [](const auto& session) {
      if (session->done) {
        session->thread.join();
      }
      return session->done;
    });
  }

  void serve(Session& session) {
    auto greeted = greet_as_server(
        *session.connection,
        key_,
        kRendezvousPurpose,
        os::Deadline::after(kGreetingTime));
    if (greeted) {
      {
        std::lock_guard lock(mutex_);
        session.greeted = true;
      }
      while (serve_one(*session.connection)) {}
    }
    session.connection->close();
    std::lock_guard lock(mutex_);
    session.done = true;
    ended_.notify_all();
  }

  // False ends the connection.
  bool serve_one(os::Connection& connection) {
    auto frame =
        read_frame(connection, os::Deadline::never(), kMaxRendezvousFrame);
    if (!frame) {
      return false;
    }
    auto request = parse_request(*frame);
    if (!request) {
      return false;
    }
    Reply reply;
    if (request->is_put) {
      reply.found = table_.put(request->key, request->value).has_value();
    } else {
      auto value =
          table_.get(request->key, os::Deadline::after(request->patience));
      reply.found = value.has_value();
      if (value) {
        reply.value = *value;
      } else if (value.error().code() != ErrorCode::kTimeout) {
        return false;
      }
    }
    return write_frame(
               connection, format_reply(reply), os::Deadline::after(kReplyTime))
        .has_value();
  }

  std::unique_ptr<os::Listener> listener_;
  Key key_;
  Table table_;
  std::atomic<bool> stopping_{false};
  std::mutex mutex_;
  std::condition_variable ended_;                   // a session
  std::vector<std::shared_ptr<Session>> sessions_;  // oldest first
  std::thread acceptor_;
};

}  // namespace

Result<std::unique_ptr<RendezvousServer>> RendezvousServer::start(
    os::Network& network,
    const os::Address& address,
    const Key& key) {
  LOCKSTEP_ASSIGN(auto listener, network.listen(address));
  return std::make_unique<Server>(std::move(listener), key);
}

std::shared_ptr<Rendezvous> make_local_rendezvous() {
  return std::make_shared<Table>();
}

}  // namespace lockstep::wire
