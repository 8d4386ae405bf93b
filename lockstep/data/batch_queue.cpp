#include "lockstep/data/batch_queue.h"

#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <system_error>
#include <thread>

#include "lockstep/base/check.h"
#include "lockstep/data/random.h"

namespace lockstep::data {
namespace {

// What one start() works on; slots that outlive it hold on to it.
struct Plan {
  std::vector<int64_t> indices;
  int64_t batch_size = 1;
  int64_t end = 0;
  uint64_t flip_key = 0;
  uint64_t crop_key = 0;
};

struct Slot {
  std::shared_ptr<const Plan> plan;
  std::span<const int64_t> indices;
  BatchMemory memory;
  size_t taken = 0;    // samples handed to workers
  size_t working = 0;  // chunks in workers' hands
  std::exception_ptr error;

  bool complete() const { return taken == indices.size() && working == 0; }
};

// What a thread needs to itself.
struct Hand {
  explicit Hand(const BatchQueueOptions& options) : resizer(options.resize) {
    if (options.small) {
      small.emplace(*options.small);
    }
  }
  Resizer resizer;
  std::optional<Resizer> small;
  RawImage image;
  std::vector<float> resized;  // that a window is cut out of
};

// Signals are for the main thread; a worker that took one would run its
// handler in the middle of a decode.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

struct BatchQueue::Impl {
  std::shared_ptr<const Dataset> dataset;
  BatchQueueOptions options;
  Allocate allocate;
  int64_t image_floats = 0;
  int64_t small_floats = 0;
  size_t image_pixels = 0;

  // Consumer only.
  std::shared_ptr<const Plan> plan;
  int64_t next_batch = 0;  // to be put ahead
  std::optional<Hand> own_hand;

  std::mutex mutex;
  std::condition_variable work;
  std::condition_variable done;
  bool stopping = false;
  std::deque<std::shared_ptr<Slot>> ahead;
  std::vector<std::thread> threads;

  bool flips(const Plan& plan, int64_t index) const {
    const auto sample = static_cast<uint64_t>(index);
    return options.flip && (stream_value(plan.flip_key, sample) & 1) != 0;
  }

  void resize(Hand& hand, const Plan& plan, int64_t index, float* to) const {
    const auto sample = static_cast<uint64_t>(index);
    const bool flip = flips(plan, index);
    if (options.crop == 0) {
      hand.resizer.run(hand.image, flip, to);
      return;
    }
    const auto side = static_cast<size_t>(options.crop);
    const auto wide = static_cast<size_t>(options.resize.width);
    const auto high = static_cast<size_t>(options.resize.height);
    const auto channels = static_cast<size_t>(hand.image.channels);
    hand.resized.resize(high * wide * channels);
    hand.resizer.run(hand.image, flip, hand.resized.data());
    const auto draw = [&](uint64_t which, size_t room) {
      return below(stream_value(plan.crop_key, 2 * sample + which), room + 1);
    };
    const size_t down = draw(0, high - side);
    const size_t across = draw(1, wide - side);
    for (size_t row = 0; row < side; ++row) {
      const float* from =
          hand.resized.data() + ((down + row) * wide + across) * channels;
      std::copy_n(from, side * channels, to + row * side * channels);
    }
  }

  void fill(Hand& hand, const Slot& slot, size_t begin, size_t end) const {
    for (size_t i = begin; i < end; ++i) {
      const int64_t index = slot.indices[i];
      dataset->read(index, hand.image);
      if (hand.image.channels != dataset->channels()) {
        throw DataError("an image has other channels than its data set");
      }
      if (options.pixels) {
        LOCKSTEP_CHECK_EQ(hand.image.pixels.size(), image_pixels);
        std::copy(
            hand.image.pixels.begin(),
            hand.image.pixels.end(),
            slot.memory.pixels + i * image_pixels);
      } else {
        resize(
            hand,
            *slot.plan,
            index,
            slot.memory.images + static_cast<int64_t>(i) * image_floats);
        if (hand.small) {
          hand.small->run(
              hand.image,
              flips(*slot.plan, index),
              slot.memory.small + static_cast<int64_t>(i) * small_floats);
        }
      }
      slot.memory.labels[i] = dataset->label(index);
    }
  }

  std::shared_ptr<Slot> make_slot() {
    if (next_batch >= plan->end) {
      return nullptr;
    }
    const int64_t begin = next_batch * plan->batch_size;
    const int64_t count = std::min(
        plan->batch_size, static_cast<int64_t>(plan->indices.size()) - begin);
    if (count <= 0) {
      return nullptr;
    }
    ++next_batch;
    auto slot = std::make_shared<Slot>();
    slot->plan = plan;
    slot->indices =
        std::span(plan->indices)
            .subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
    slot->memory = allocate(count);
    slot->memory.size = count;
    return slot;
  }

  void put_ahead() {
    while (true) {
      {
        std::lock_guard lock(mutex);
        if (ahead.size() >= static_cast<size_t>(options.prefetch)) {
          return;
        }
      }
      std::shared_ptr<Slot> slot = make_slot();
      if (!slot) {
        return;
      }
      {
        std::lock_guard lock(mutex);
        ahead.push_back(std::move(slot));
      }
      work.notify_all();
    }
  }

  std::shared_ptr<Slot> find_work() const {
    for (const auto& slot : ahead) {
      if (slot->taken < slot->indices.size()) {
        return slot;
      }
    }
    return nullptr;
  }

  void end_workers() {
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    work.notify_all();
    for (std::thread& thread : threads) {
      thread.join();
    }
  }

  void run_worker() {
    Hand hand(options);
    std::unique_lock lock(mutex);
    while (true) {
      std::shared_ptr<Slot> slot;
      work.wait(lock, [&] { return stopping || (slot = find_work()); });
      if (stopping) {
        return;
      }
      // Small enough that several workers share a batch, large enough that
      // the lock does not count.
      const size_t chunk = std::clamp<size_t>(
          slot->indices.size() / (threads.size() * 2), 1, 32);
      const size_t begin = slot->taken;
      const size_t end = std::min(begin + chunk, slot->indices.size());
      slot->taken = end;
      ++slot->working;
      lock.unlock();
      std::exception_ptr error;
      try {
        fill(hand, *slot, begin, end);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      --slot->working;
      if (error && !slot->error) {
        slot->error = error;
        slot->taken = slot->indices.size();
      }
      if (slot->complete()) {
        done.notify_one();
      }
      // Dropped under the lock: the memory may go back to the consumer.
      slot.reset();
    }
  }

  std::optional<BatchMemory> next_here() {
    std::shared_ptr<Slot> slot = make_slot();
    if (!slot) {
      return std::nullopt;
    }
    try {
      fill(*own_hand, *slot, 0, slot->indices.size());
    } catch (...) {
      --next_batch;
      throw;
    }
    return std::move(slot->memory);
  }

  std::optional<BatchMemory> next_ahead() {
    std::unique_lock lock(mutex);
    if (ahead.empty()) {
      return std::nullopt;
    }
    std::shared_ptr<Slot> slot = ahead.front();
    done.wait(lock, [&] { return slot->complete(); });
    if (slot->error) {
      std::rethrow_exception(slot->error);
    }
    ahead.pop_front();
    lock.unlock();
    put_ahead();
    return std::move(slot->memory);
  }
};

BatchQueue::BatchQueue(
    std::shared_ptr<const Dataset> dataset,
    const BatchQueueOptions& options,
    Allocate allocate)
    : impl_(std::make_unique<Impl>()) {
  LOCKSTEP_CHECK(dataset != nullptr && options.workers >= 0);
  LOCKSTEP_CHECK_LE(1, options.prefetch);
  impl_->dataset = std::move(dataset);
  impl_->options = options;
  impl_->allocate = std::move(allocate);
  LOCKSTEP_CHECK(
      options.crop == 0 ||
      (options.crop <= options.resize.height &&
       options.crop <= options.resize.width && options.resize.channels_last));
  const int64_t height =
      options.crop > 0 ? options.crop : options.resize.height;
  const int64_t width = options.crop > 0 ? options.crop : options.resize.width;
  impl_->image_floats = height * width * impl_->dataset->channels();
  if (options.small) {
    impl_->small_floats = static_cast<int64_t>(options.small->height) *
                          options.small->width * impl_->dataset->channels();
  }
  const auto size = impl_->dataset->image_size();
  impl_->image_pixels = static_cast<size_t>(size.height) *
                        static_cast<size_t>(size.width) *
                        static_cast<size_t>(impl_->dataset->channels());
  LOCKSTEP_CHECK(!options.pixels || impl_->image_pixels > 0);
  impl_->own_hand.emplace(options);  // also checks the options
  SignalsBlocked blocked;
  try {
    std::lock_guard lock(impl_->mutex);  // workers look at threads.size()
    for (int i = 0; i < options.workers; ++i) {
      std::thread& thread = impl_->threads.emplace_back(
          [impl = impl_.get()] { impl->run_worker(); });
      pthread_setname_np(thread.native_handle(), "data-worker");
    }
  } catch (const std::system_error& failure) {  // a limit on processes
    impl_->end_workers();
    throw DataError(
        fmt::format(
            "data.workers={}: thread {} cannot be started ({}); take fewer",
            options.workers,
            impl_->threads.size() + 1,
            failure.what()));
  }
}

BatchQueue::~BatchQueue() {
  impl_->end_workers();
}

void BatchQueue::start(
    std::vector<int64_t> indices,
    int64_t batch_size,
    int64_t first,
    int64_t end,
    int64_t epoch) {
  LOCKSTEP_CHECK_LE(1, batch_size);
  LOCKSTEP_CHECK_LE(0, first);
  // Apart from the sampler's stream and from each other.
  constexpr uint64_t kFlips = 0x666c6970;
  constexpr uint64_t kCrops = 0x63726f70;
  auto plan = std::make_shared<Plan>();
  plan->indices = std::move(indices);
  plan->batch_size = batch_size;
  plan->end = end;
  plan->flip_key =
      stream_key(impl_->options.seed, static_cast<uint64_t>(epoch), kFlips);
  plan->crop_key =
      stream_key(impl_->options.seed, static_cast<uint64_t>(epoch), kCrops);
  std::deque<std::shared_ptr<Slot>> dropped;
  {
    std::lock_guard lock(impl_->mutex);
    dropped.swap(impl_->ahead);
    for (const auto& slot : dropped) {
      slot->taken = slot->indices.size();
    }
  }
  dropped.clear();
  impl_->plan = std::move(plan);
  impl_->next_batch = first;
  if (impl_->options.workers > 0) {
    impl_->put_ahead();
  }
}

std::optional<BatchMemory> BatchQueue::next() {
  LOCKSTEP_CHECK(impl_->plan != nullptr, "next() before start()");
  return impl_->options.workers > 0 ? impl_->next_ahead() : impl_->next_here();
}

}  // namespace lockstep::data
