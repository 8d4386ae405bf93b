#pragma once

// The client's side of whose turn it is to rent (launch/renting.h): a thread
// tells the head now and then that we are here, over a session of its own, and
// hears whether it is our turn still. Time counts while this machine sleeps,
// so that one that wakes up does not rent before it has asked.

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/base/units.h"
#include "lockstep/os/file.h"
#include "lockstep/reach/session.h"

namespace lockstep::commands {

class RentingBeat {
 public:
  using Connect = std::function<Result<std::unique_ptr<reach::Session>>()>;
  // `directory`: of the run, on the head. `away`: of silence, after which the
  // head rents.
  RentingBeat(Connect connect, os::Path directory, Duration away);
  ~RentingBeat();
  RentingBeat(const RentingBeat&) = delete;
  RentingBeat& operator=(const RentingBeat&) = delete;

  // False: the head rents, or may by now.
  bool is_ours() const;

 private:
  void beat(const std::stop_token& stopped);
  Result<bool> ask(std::unique_ptr<reach::Session>& session) const;

  const Connect connect_;
  const os::Path directory_;
  const Duration away_;
  std::atomic<bool> is_taken_ = false;
  std::atomic<int64_t> heard_;  // when we last asked and it was ours
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace lockstep::commands
