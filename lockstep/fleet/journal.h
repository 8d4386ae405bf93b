#pragma once

// What a command does to the cloud, written down before it is done. A step has
// a begin record, which is on the disk before the call is made and holds all
// that is needed to repeat or undo it (token, exact order), and a done record
// with what came of it. After a crash the steps without a done record are those
// of which nobody knows how they went. One file a cluster, JSON lines, appended
// and synced; a line that was torn by a crash is dropped. One process at a time
// works on a cluster: the open journal holds a lock. Thread-safe.

#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/result.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/file.h"

namespace lockstep::fleet {

struct JournalStep {
  int number = 0;       // of its begin record, from 1
  std::string step;     // "launch", "key-pair", ...
  std::string subject;  // a node's name, ...
  double time = 0;      // Unix seconds: when it began
  nlohmann::json order;
  std::optional<nlohmann::json> outcome;  // none: nobody knows
};

struct JournalOptions {
  os::Path folder;  // of the cluster
  os::Clock* clock = &os::real_clock();
  // For tests of crashes: called around each record with its number, before it
  // is written and when it is on the disk. After an error nothing more is
  // written, as if the process had died.
  enum class Moment { kBefore, kAfter };
  std::function<Result<void>(int number, Moment moment)> hook = {};
};

class Journal {
 public:
  // Makes the folder. kUnavailable when another process works on the cluster.
  static Result<std::unique_ptr<Journal>> open(JournalOptions options);
  // Without the lock, for those that only look; empty when there is none.
  static Result<std::vector<JournalStep>> read(const os::Path& folder);

  // The number for done().
  Result<int> begin(
      const std::string& step,
      const std::string& subject,
      nlohmann::json order);
  Result<void> done(int number, nlohmann::json outcome = nullptr);
  // A step that is its own outcome.
  Result<void> note(
      const std::string& step,
      const std::string& subject,
      nlohmann::json value);

  std::vector<JournalStep> steps() const;
  std::vector<JournalStep> unfinished() const;
  // The newest of that step, and subject where one is named.
  std::optional<JournalStep> last(
      const std::string& step,
      const std::string& subject = "") const;
  // All is over: the file goes, the folder stays.
  Result<void> forget();

 private:
  explicit Journal(JournalOptions options) : options_(std::move(options)) {}
  Result<void> write(const nlohmann::json& record);

  JournalOptions options_;
  mutable std::mutex mutex_;
  os::Descriptor lock_;
  std::unique_ptr<os::Appender> file_;
  std::vector<JournalStep> steps_;
  int records_ = 0;
  std::optional<Error> dead_;  // what the hook, or the disk, said
};

// "<folder>/journal.jsonl".
os::Path journal_file(const os::Path& folder);

}  // namespace lockstep::fleet
