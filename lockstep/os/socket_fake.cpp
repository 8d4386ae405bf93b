#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <vector>

#include "lockstep/base/check.h"
#include "lockstep/os/socket.h"

namespace lockstep::os {
namespace {

constexpr size_t kPipeBytes = 64 * 1024;
constexpr size_t kMaxPending = 1024;

struct Pipe {
  std::deque<std::byte> bytes;
  bool closed = false;
};

// A connection that no accept() has taken yet.
struct Pending {
  std::shared_ptr<Pipe> in;
  std::shared_ptr<Pipe> out;
  std::string peer;
};

struct Queue {
  std::deque<Pending> waiting;
  bool closed = false;
};

// One lock for the whole fake: tests are small, and cut() is then simple.
struct FakeState {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Queue>> listeners;
  uint16_t next_port = 40000;
  int next_client = 1;
  bool cut = false;
};

Error timeout(const std::string& what) {
  return std::move(Error(ErrorCode::kTimeout, what + " took too long"))
      .with_retry();
}

Error gone(const std::string& what) {
  return std::move(Error(ErrorCode::kUnavailable, what)).with_retry();
}

class FakeConnection : public Connection {
 public:
  FakeConnection(
      std::shared_ptr<FakeState> state,
      std::shared_ptr<Pipe> in,
      std::shared_ptr<Pipe> out,
      std::string peer)
      : state_(std::move(state)),
        in_(std::move(in)),
        out_(std::move(out)),
        peer_(std::move(peer)) {}
  ~FakeConnection() override { close(); }

  Result<size_t> read_some(std::span<std::byte> buffer, Deadline deadline)
      override {
    std::unique_lock lock(state_->mutex);
    bool ready = wait(
        lock, deadline, [&] { return !in_->bytes.empty() || in_->closed; });
    LOCKSTEP_TRY(usable("reading from"));
    if (!ready) {
      return timeout("reading from " + peer_);
    }
    size_t count = std::min(buffer.size(), in_->bytes.size());
    std::copy_n(in_->bytes.begin(), count, buffer.begin());
    in_->bytes.erase(
        in_->bytes.begin(),
        in_->bytes.begin() + static_cast<std::ptrdiff_t>(count));
    state_->changed.notify_all();
    return count;
  }

  Result<void> write_all(std::span<const std::byte> data, Deadline deadline)
      override {
    std::unique_lock lock(state_->mutex);
    while (!data.empty()) {
      bool ready = wait(lock, deadline, [&] {
        return out_->closed || out_->bytes.size() < kPipeBytes;
      });
      LOCKSTEP_TRY(usable("writing to"));
      if (out_->closed) {
        return gone(fmt::format("writing to {}: Broken pipe", peer_));
      }
      if (!ready) {
        return timeout("writing to " + peer_);
      }
      size_t count = std::min(data.size(), kPipeBytes - out_->bytes.size());
      out_->bytes.insert(
          out_->bytes.end(),
          data.begin(),
          data.begin() + static_cast<std::ptrdiff_t>(count));
      data = data.subspan(count);
      state_->changed.notify_all();
    }
    return {};
  }

  void close() override {
    std::lock_guard lock(state_->mutex);
    closed_ = true;
    in_->closed = true;
    out_->closed = true;
    state_->changed.notify_all();
  }

  std::string peer() const override { return peer_; }

 private:
  template <class Ready>
  bool wait(
      std::unique_lock<std::mutex>& lock,
      Deadline deadline,
      const Ready& ready) {
    while (!ready() && !closed_ && !state_->cut) {
      if (deadline.passed()) {
        return false;
      }
      state_->changed.wait_for(lock, deadline.left());
    }
    return true;
  }

  Result<void> usable(const char* what) {
    if (closed_) {
      return Error(
          ErrorCode::kAborted,
          fmt::format("the connection with {} was closed here", peer_));
    }
    if (state_->cut) {
      return gone(fmt::format("{} {}: the network is cut", what, peer_));
    }
    return {};
  }

  std::shared_ptr<FakeState> state_;
  std::shared_ptr<Pipe> in_;
  std::shared_ptr<Pipe> out_;
  std::string peer_;
  bool closed_ = false;
};

class FakeListener : public Listener {
 public:
  FakeListener(
      std::shared_ptr<FakeState> state,
      std::shared_ptr<Queue> queue,
      Address address)
      : state_(std::move(state)),
        queue_(std::move(queue)),
        address_(std::move(address)) {}
  ~FakeListener() override { close(); }

  Result<std::unique_ptr<Connection>> accept(Deadline deadline) override {
    std::unique_lock lock(state_->mutex);
    while (queue_->waiting.empty() && !queue_->closed) {
      if (deadline.passed()) {
        return timeout("waiting on " + address_.to_string());
      }
      state_->changed.wait_for(lock, deadline.left());
    }
    if (queue_->closed) {
      return Error(
          ErrorCode::kAborted,
          fmt::format("{} was closed", address_.to_string()));
    }
    Pending next = std::move(queue_->waiting.front());
    queue_->waiting.pop_front();
    return std::make_unique<FakeConnection>(
        state_, next.in, next.out, next.peer);
  }

  Address address() const override { return address_; }

  void close() override {
    std::lock_guard lock(state_->mutex);
    if (queue_->closed) {
      return;
    }
    queue_->closed = true;
    for (Pending& pending : queue_->waiting) {
      pending.in->closed = true;
      pending.out->closed = true;
    }
    queue_->waiting.clear();
    state_->listeners.erase(address_.to_string());
    state_->changed.notify_all();
  }

 private:
  std::shared_ptr<FakeState> state_;
  std::shared_ptr<Queue> queue_;
  Address address_;
};

class FakeNetwork : public Network {
 public:
  Result<std::unique_ptr<Listener>> listen(const Address& address) override {
    std::lock_guard lock(state_->mutex);
    Address chosen = address;
    if (chosen.unix_path.empty() && chosen.port == 0) {
      chosen.port = state_->next_port++;
    }
    auto queue = std::make_shared<Queue>();
    if (!state_->listeners.emplace(chosen.to_string(), queue).second) {
      return gone(
          fmt::format(
              "cannot listen on {}: Address already in use",
              chosen.to_string()));
    }
    return std::make_unique<FakeListener>(state_, queue, chosen);
  }

  Result<std::unique_ptr<Connection>> connect(const Address& address, Deadline)
      override {
    std::lock_guard lock(state_->mutex);
    std::string name = address.to_string();
    auto found = state_->listeners.find(name);
    if (state_->cut || found == state_->listeners.end() ||
        found->second->waiting.size() >= kMaxPending) {
      return gone(
          fmt::format("cannot connect to {}: Connection refused", name));
    }
    auto to_server = std::make_shared<Pipe>();
    auto to_client = std::make_shared<Pipe>();
    found->second->waiting.push_back(
        Pending{
            .in = to_server,
            .out = to_client,
            .peer = fmt::format("fake client {}", state_->next_client++)});
    state_->changed.notify_all();
    return std::make_unique<FakeConnection>(state_, to_client, to_server, name);
  }

  void cut() {
    std::lock_guard lock(state_->mutex);
    state_->cut = true;
    state_->changed.notify_all();
  }

 private:
  // Shared with the connections, which may live longer.
  std::shared_ptr<FakeState> state_ = std::make_shared<FakeState>();
};

}  // namespace

std::unique_ptr<Network> make_fake_network() {
  return std::make_unique<FakeNetwork>();
}

void cut(Network& fake) {
  auto* network = dynamic_cast<FakeNetwork*>(&fake);
  LOCKSTEP_CHECK(network != nullptr, "cut() takes a fake network");
  network->cut();
}

}  // namespace lockstep::os
