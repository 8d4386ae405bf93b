#include "lockstep/record/event_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/record/pending_file.h"

namespace lockstep::record {

namespace {

using namespace std::chrono_literals;

// Events that may wait in memory before iteration and resource are dropped.
constexpr size_t kBound = 8192;
// Events are gathered this long, so that a fast loop costs few writes and few
// wake-ups of a thread that would take the trainer's core.
constexpr auto kGather = 50ms;
constexpr auto kGatherUrgent = 2ms;  // kinds that may not be dropped
constexpr auto kRetry = 200ms;
constexpr auto kDrain = 5s;
constexpr size_t kBatchText = size_t{1} << 20;

struct Stamped {
  double time = 0;
  wire::EventBody body;
};

class NullWriter : public EventWriter {
 public:
  void write(wire::EventBody) override {}
  void flush() override {}
  int64_t dropped() const override { return 0; }
};

// Shared by the writer and its thread: a thread that hangs in the kernel
// outlives the writer and still finds its queue.
class Queue {
 public:
  Queue(PendingFile file, int rank, std::string node)
      : file_(std::move(file)), rank_(rank), node_(std::move(node)) {}

  void push(wire::EventBody body) {
    const double time = os::real_clock().unix_seconds();
    const bool droppable = wire::may_drop(body);
    bool wake = false;
    {
      const std::lock_guard lock(mutex_);
      if (droppable && queue_.size() >= kBound) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
        return;
      }
      queue_.push_back({time, std::move(body)});
      ++pushed_;
      // The thread sleeps without end only on an empty queue.
      wake = queue_.size() == 1 || (!droppable && !urgent_);
      urgent_ = urgent_ || !droppable;
    }
    if (wake) {
      wake_.notify_one();
    }
  }

  void flush() {
    std::unique_lock lock(mutex_);
    const int64_t target = pushed_;
    const int64_t failures = failures_;
    sync_target_ = std::max(sync_target_, target);
    wake_.notify_one();
    idle_.wait(lock, [&] {
      return ended_ || synced_ >= target || failures_ != failures;
    });
  }

  // True when the thread ended in time.
  bool stop() {
    std::unique_lock lock(mutex_);
    stop_ = true;
    wake_.notify_one();
    return idle_.wait_for(lock, kDrain, [&] { return ended_; });
  }

  int64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  void run() {
    std::vector<Stamped> batch;
    int64_t taken = 0;  // events that were taken from the queue so far
    bool ok = true;
    std::unique_lock lock(mutex_);
    while (true) {
      const auto asked = [&] { return stop_ || sync_target_ > synced_; };
      if (ok) {
        wake_.wait(lock, [&] { return asked() || !queue_.empty(); });
        if (!urgent_) {
          wake_.wait_for(lock, kGather, [&] { return asked() || urgent_; });
        }
        wake_.wait_for(lock, kGatherUrgent, asked);
        batch.swap(queue_);
        taken = pushed_;
        urgent_ = false;
      } else {
        // The queue fills meanwhile, and droppable events are counted away.
        wake_.wait_for(lock, kRetry, asked);
      }
      const bool sync = sync_target_ > synced_;
      lock.unlock();
      ok = write_batch(batch, sync);
      batch.clear();
      lock.lock();
      if (!ok) {
        ++failures_;
        sync_target_ = synced_;
      } else if (sync) {
        synced_ = taken;
      }
      idle_.notify_all();
      if (stop_ && (!ok || queue_.empty())) {
        break;
      }
    }
    ended_ = true;
    idle_.notify_all();
  }

 private:
  bool write_batch(const std::vector<Stamped>& batch, bool sync) {
    bool ok = true;
    for (const Stamped& item : batch) {
      file_.add(wire::to_json({item.time, rank_, node_, item.body}));
      file_.add("\n");
      if (ok && file_.waiting() >= kBatchText) {
        ok = report(file_.drain());
      }
    }
    ok = ok && report(file_.drain());
    return sync && ok ? report(file_.sync()) : ok;
  }

  // Says once that events cannot be written, and once that they can again.
  bool report(const Result<void>& result) {
    if (!result && !failing_) {
      log_warning(
          fmt::format("events wait in memory: {}", result.error().to_string()));
    } else if (result && failing_) {
      log_info("events reach the disk again");
    }
    failing_ = !result;
    return result.has_value();
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::vector<Stamped> queue_;
  bool urgent_ = false;
  bool stop_ = false;
  bool ended_ = false;
  int64_t pushed_ = 0;  // events, ever
  int64_t sync_target_ = 0;
  int64_t synced_ = 0;
  int64_t failures_ = 0;
  std::atomic<int64_t> dropped_{0};
  // The thread's own.
  PendingFile file_;
  int rank_;
  std::string node_;
  bool failing_ = false;
};

class QueueWriter : public EventWriter {
 public:
  explicit QueueWriter(std::shared_ptr<Queue> queue)
      : queue_(std::move(queue)), thread_([q = queue_] { q->run(); }) {}
  QueueWriter(const QueueWriter&) = delete;
  QueueWriter& operator=(const QueueWriter&) = delete;
  ~QueueWriter() override {
    if (queue_->stop()) {
      thread_.join();
    } else {
      thread_.detach();
    }
    if (dropped() > 0) {
      log_warning(
          fmt::format("{} events were dropped: the disk stalled", dropped()));
    }
  }
  void write(wire::EventBody body) override { queue_->push(std::move(body)); }
  void flush() override { queue_->flush(); }
  int64_t dropped() const override { return queue_->dropped(); }

 private:
  std::shared_ptr<Queue> queue_;
  std::thread thread_;
};

}  // namespace

Result<std::unique_ptr<EventWriter>> EventWriter::open(
    os::FileSystem& files,
    const os::Path& path,
    int rank,
    std::string node) {
  if (path.empty()) {
    return std::make_unique<NullWriter>();
  }
  bool cut = false;
  if (const auto size = files.size(path); size && size->count > 0) {
    LOCKSTEP_ASSIGN(const std::string text, files.read(path));
    cut = !text.ends_with('\n');
  }
  LOCKSTEP_ASSIGN(auto file, PendingFile::open(files, path));
  if (cut) {
    // Whoever wrote before us was killed inside a line: close it.
    file.add("\n");
  }
  return std::make_unique<QueueWriter>(
      std::make_shared<Queue>(std::move(file), rank, std::move(node)));
}

namespace {

class Handle {
 public:
  explicit Handle(int descriptor) : descriptor_(descriptor) {}
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (descriptor_ >= 0) {
      ::close(descriptor_);
    }
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

constexpr size_t kChunk = size_t{1} << 20;
constexpr size_t kHead = 128;
// A line without an end is not an event; it must not eat the memory either.
constexpr size_t kLongestLine = size_t{16} << 20;

Result<size_t>
read_at(int descriptor, char* buffer, size_t size, uint64_t offset) {
  while (true) {
    const ssize_t count =
        ::pread(descriptor, buffer, size, static_cast<off_t>(offset));
    if (count >= 0) {
      return static_cast<size_t>(count);
    }
    if (errno != EINTR) {
      return os_error("reading events", errno);
    }
  }
}

}  // namespace

// The file was cut or another one took its place: start again.
Result<bool> EventReader::replaced(int descriptor) const {
  struct stat facts{};
  if (::fstat(descriptor, &facts) != 0) {
    return os_error("reading events", errno);
  }
  if (static_cast<uint64_t>(facts.st_size) < offset_) {
    return true;
  }
  std::string head(head_.size(), '\0');
  LOCKSTEP_ASSIGN(
      const size_t count, read_at(descriptor, head.data(), head.size(), 0));
  return count < head_.size() || head != head_;
}

void EventReader::take_lines(std::string_view text, const Use& use) {
  const auto one = [&](const std::string& line) {
    if (line.empty()) {
      return;
    }
    if (const auto event = wire::parse_event(line)) {
      use(*event, line);
    } else {
      ++skipped_;
    }
  };
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view piece = text.substr(0, end);
    if (!too_long_) {
      partial_ += piece;
    }
    if (partial_.size() > kLongestLine) {
      too_long_ = true;
      partial_ = std::string();
    }
    if (end == std::string_view::npos) {
      return;
    }
    text.remove_prefix(end + 1);
    if (std::exchange(too_long_, false)) {
      ++skipped_;
    } else {
      one(partial_);
    }
    partial_.clear();
  }
}

Result<void> EventReader::poll(const Use& use) {
  const Handle handle(::open(path_.c_str(), O_RDONLY | O_CLOEXEC));
  if (handle.get() < 0) {
    if (errno == ENOENT) {
      return {};
    }
    return os_error(fmt::format("reading {}", path_.string()), errno);
  }
  LOCKSTEP_ASSIGN(const bool anew, replaced(handle.get()));
  if (anew) {
    offset_ = 0;
    head_.clear();
    partial_.clear();
    too_long_ = false;
  }
  std::string buffer(kChunk, '\0');
  while (true) {
    auto count = read_at(handle.get(), buffer.data(), buffer.size(), offset_);
    if (!count) {
      return std::move(count.error()).with_context(path_.string());
    }
    if (*count == 0) {
      return {};
    }
    const std::string_view text(buffer.data(), *count);
    if (offset_ == head_.size() && head_.size() < kHead) {
      head_ += text.substr(0, kHead - head_.size());
    }
    offset_ += *count;
    take_lines(text, use);
  }
}

}  // namespace lockstep::record
