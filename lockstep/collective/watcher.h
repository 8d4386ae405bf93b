#pragma once

// Watches the connections with other ranks from a thread that sleeps in
// poll(): a stream that ends without a farewell means that the rank is gone,
// however it died. Also carries aborts. send_abort() from any thread; the
// handlers run on the watcher's thread.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/collective/failure.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/socket.h"

namespace lockstep::collective {

class Watcher {
 public:
  struct Handlers {
    std::function<void(int rank)> gone;
    std::function<void(int rank)> left;
    std::function<void(const Failure& failure)> abort;
  };

  explicit Watcher(Handlers handlers);
  ~Watcher();

  // Before start() only.
  void add(int rank, std::unique_ptr<os::Connection> connection);
  void start();
  void send_abort(const Failure& failure);
  // Says farewell and ends the thread; no handler runs after it.
  void stop();

 private:
  struct Peer {
    int rank;
    std::unique_ptr<os::Connection> connection;
    bool open = true;
  };
  void watch();
  void look(Peer& peer);
  void send(const std::string& message);

  Handlers handlers_;
  std::vector<Peer> peers_;
  os::Descriptor stop_;
  bool stopped_ = false;
  std::mutex sending_;
  std::thread thread_;
};

}  // namespace lockstep::collective
