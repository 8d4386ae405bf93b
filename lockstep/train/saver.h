#pragma once

// Where a run's checkpoints go: best and last, as checkpoint_group.h writes
// them. The state of a GPU is copied to host memory and written behind
// training, one write at a time; elsewhere training waits for the file, which
// costs no second copy of the state. All ranks call.

#include <filesystem>
#include <future>
#include <string>

#include "lockstep/train/checkpoint.h"

namespace lockstep::record {
class EventWriter;
}

namespace lockstep::train {

class Saver {
 public:
  struct Options {
    std::filesystem::path folder;
    bool sharded = false;  // checkpoints are folders of shards
    bool behind = false;   // write behind training: whole states on a GPU
  };
  // `group` and `events` outlive it.
  Saver(
      const Options& options,
      collective::Communicator& group,
      record::EventWriter& events);
  // Waits for the write under way; what that throws is lost: wait() before.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  // "best" replaces both; others replace `last`, and `best` where validation
  // has named none. The event is written when the file is there; its seconds
  // are those for which training stood still. Throws what this or an earlier
  // write threw.
  void save(
      const CheckpointState& state,
      const Progress& progress,
      const std::string& reason);
  // Until all is on disk; throws what the write threw.
  void wait();

  std::filesystem::path last() const { return last_in(options_.folder); }
  static std::filesystem::path last_in(const std::filesystem::path& folder) {
    return folder / "last.safetensors";
  }

 private:
  // Files of `state`; the one that the event names.
  std::filesystem::path write(
      const CheckpointState& state,
      const Progress& progress,
      const std::string& reason);
  void copy(const CheckpointState& state);

  Options options_;
  collective::Communicator& group_;
  record::EventWriter& events_;
  CheckpointState copy_;  // on the host, room kept from save to save
  std::future<void> writing_;
};

}  // namespace lockstep::train
