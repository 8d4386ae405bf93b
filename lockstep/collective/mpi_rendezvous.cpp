#include <fmt/format.h>

#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "lockstep/collective/factory.h"
#include "lockstep/collective/mpi_runtime.h"

namespace lockstep::collective {
namespace {

constexpr int kTableTag = 1;

// Every put goes to every rank; a get receives until the key has come.
class MpiRendezvous : public wire::Rendezvous {
 public:
  MpiRendezvous() {
    initialise_mpi();
    must(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }

  Result<void> put(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    table_[key] = value;
    sent_.push_back(key + '\n' + value);
    const std::string& message = sent_.back();
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) {
        continue;
      }
      MPI_Request request;
      MPI_Isend(
          message.data(),
          static_cast<int>(message.size()),
          MPI_CHAR,
          peer,
          kTableTag,
          comm_,
          &request);
      MPI_Request_free(&request);
    }
    return {};
  }

  Result<std::string> get(const std::string& key, os::Deadline deadline)
      override {
    for (;;) {
      {
        const std::lock_guard lock(mutex_);
        receive();
        const auto found = table_.find(key);
        if (found != table_.end()) {
          return found->second;
        }
      }
      if (deadline.passed()) {
        return Error(
            ErrorCode::kTimeout, fmt::format("nobody put '{}' in time", key));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }

 private:
  void receive() {
    for (;;) {
      int there = 0;
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, kTableTag, comm_, &there, &status);
      if (there == 0) {
        return;
      }
      int size = 0;
      MPI_Get_count(&status, MPI_CHAR, &size);
      std::string message(static_cast<size_t>(size), '\0');
      MPI_Recv(
          message.data(),
          size,
          MPI_CHAR,
          status.MPI_SOURCE,
          kTableTag,
          comm_,
          MPI_STATUS_IGNORE);
      const size_t end = message.find('\n');
      table_[message.substr(0, end)] = message.substr(end + 1);
    }
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::mutex mutex_;
  std::map<std::string, std::string> table_;
  std::deque<std::string> sent_;  // stays until MPI has sent it
};

}  // namespace

std::unique_ptr<wire::Rendezvous> make_mpi_rendezvous() {
  return std::make_unique<MpiRendezvous>();
}

}  // namespace lockstep::collective
