#include "lockstep/data/batch_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <numeric>

#include "lockstep/data/buffer_pool.h"

namespace lockstep::data {
namespace {

// Gray images of 2 x 2 whose pixels and label are the index; may be told to
// fail or to hold readers.
class Numbers final : public Dataset {
 public:
  int64_t size() const override { return 250; }
  int channels() const override { return 1; }
  std::vector<std::string> classes() const override { return {}; }
  int64_t label(int64_t index) const override { return index; }
  void read(int64_t index, RawImage& image) const override {
    if (index == fail_at) {
      throw DataError("image " + std::to_string(index) + " is bad");
    }
    if (gate != nullptr) {
      std::unique_lock lock(mutex);
      ++waiting;
      changed.notify_all();
      changed.wait(lock, [&] { return open; });
    }
    reads.fetch_add(1);
    image.height = image.width = 2;
    image.channels = 1;
    image.storage.assign(4, static_cast<uint8_t>(index));
    image.pixels = image.storage;
  }
  void wait_for_reader() const {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return waiting > 0; });
  }
  void let_go() const {
    std::lock_guard lock(mutex);
    open = true;
    changed.notify_all();
  }

  int64_t fail_at = -1;
  const char* gate = nullptr;
  mutable std::mutex mutex;
  mutable std::condition_variable changed;
  mutable int waiting = 0;
  mutable bool open = false;
  mutable std::atomic<int64_t> reads{0};
};

BatchQueueOptions options(int workers, int prefetch) {
  BatchQueueOptions result;
  result.resize.height = result.resize.width = 2;
  result.resize.mean = {0, 0, 0};
  result.resize.stddev = {1.f / 255, 1.f / 255, 1.f / 255};
  result.workers = workers;
  result.prefetch = prefetch;
  return result;
}

BatchMemory allocate(int64_t size) {
  struct Owner {
    std::vector<float> images;
    std::vector<int64_t> labels;
  };
  auto owner = std::make_shared<Owner>();
  owner->images.resize(static_cast<size_t>(size) * 4);
  owner->labels.resize(static_cast<size_t>(size));
  BatchMemory memory;
  memory.images = owner->images.data();
  memory.labels = owner->labels.data();
  memory.owner = owner;
  return memory;
}

std::vector<int64_t> count_to(int64_t n) {
  std::vector<int64_t> indices(static_cast<size_t>(n));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

// All labels until the end; pixels must agree.
std::vector<int64_t> drain(BatchQueue& queue) {
  std::vector<int64_t> labels;
  while (auto batch = queue.next()) {
    for (int64_t i = 0; i < batch->size; ++i) {
      labels.push_back(batch->labels[i]);
      for (int64_t p = 0; p < 4; ++p) {
        EXPECT_NEAR(
            batch->images[i * 4 + p],
            static_cast<float>(batch->labels[i]),
            1e-3);
      }
    }
  }
  return labels;
}

class Workers : public ::testing::TestWithParam<int> {};

TEST_P(Workers, KeepTheOrder) {
  auto numbers = std::make_shared<Numbers>();
  for (int prefetch : {1, 2, 5}) {
    BatchQueue queue(numbers, options(GetParam(), prefetch), allocate);
    for (int64_t batch : {1, 7, 100, 1000}) {
      const int64_t batches = (250 + batch - 1) / batch;
      queue.start(count_to(250), batch, 0, batches, 0);
      EXPECT_EQ(drain(queue), count_to(250));
      EXPECT_FALSE(queue.next());
    }
  }
}

TEST_P(Workers, StartInTheMiddleAndOver) {
  auto numbers = std::make_shared<Numbers>();
  BatchQueue queue(numbers, options(GetParam(), 3), allocate);
  queue.start(count_to(250), 20, 11, 13, 0);
  const auto labels = drain(queue);
  ASSERT_EQ(labels.size(), 30u);
  EXPECT_EQ(labels.front(), 220);
  for (int round = 0; round < 20; ++round) {
    queue.start(count_to(250), 20, round % 12, 13, round);
    EXPECT_EQ(queue.next()->labels[0], round % 12 * 20);
  }
  queue.start(count_to(250), 20, 13, 13, 0);
  EXPECT_FALSE(queue.next());
}

TEST_P(Workers, ErrorsComeInTurnAndStay) {
  auto numbers = std::make_shared<Numbers>();
  numbers->fail_at = 45;
  BatchQueue queue(numbers, options(GetParam(), 4), allocate);
  queue.start(count_to(250), 20, 0, 13, 0);
  EXPECT_EQ(queue.next()->labels[0], 0);
  EXPECT_EQ(queue.next()->labels[0], 20);
  for (int i = 0; i < 3; ++i) {
    try {
      queue.next();
      FAIL() << "no error";
    } catch (const DataError& error) {
      EXPECT_STREQ(error.what(), "image 45 is bad");
    }
  }
  queue.start(count_to(250), 20, 3, 13, 0);  // after the bad one
  EXPECT_EQ(queue.next()->labels[0], 60);
}

INSTANTIATE_TEST_SUITE_P(Counts, Workers, ::testing::Values(0, 1, 2, 4));

TEST(BatchQueueTest, DestroyedWhileWorkersRead) {
  for (int round = 0; round < 20; ++round) {
    auto numbers = std::make_shared<Numbers>();
    BatchQueue queue(numbers, options(3, 2), allocate);
    queue.start(count_to(250), 10, 0, 25, 0);
    if (round % 2 == 0) {
      queue.next();
    }
  }
}

#if !defined(__SANITIZE_THREAD__)  // which has threads of its own
// In a process of its own: the limit is its user's, and root has none.
TEST(BatchQueueTest, ThreadsThatCannotBeStartedAreAnError) {
  const auto limited = [] {
    const rlimit few{2, 2};
    if ((geteuid() == 0 && setresuid(65533, 65533, 65533) != 0) ||
        setrlimit(RLIMIT_NPROC, &few) != 0) {
      std::_Exit(2);
    }
    try {
      const BatchQueue queue(
          std::make_shared<Numbers>(), options(64, 2), allocate);
    } catch (const DataError& failure) {
      std::fputs(failure.what(), stderr);
      std::_Exit(0);
    }
    std::_Exit(1);
  };
  EXPECT_EXIT(
      limited(),
      testing::ExitedWithCode(0),
      "data.workers=64: thread .* cannot be started .*take fewer");
}
#endif

// A worker is inside read() while the consumer starts over: the memory it
// writes to must live, and the new order must be whole.
TEST(BatchQueueTest, StartsOverWhileAWorkerIsInside) {
  auto numbers = std::make_shared<Numbers>();
  numbers->gate = "closed";
  BatchQueue queue(numbers, options(2, 2), allocate);
  queue.start(count_to(250), 50, 0, 5, 0);
  numbers->wait_for_reader();
  queue.start(count_to(100), 50, 0, 2, 1);
  numbers->let_go();
  EXPECT_EQ(drain(queue), count_to(100));
}

TEST(BatchQueueTest, ReadsNoFurtherThanPrefetch) {
  auto numbers = std::make_shared<Numbers>();
  {
    BatchQueue queue(numbers, options(2, 2), allocate);
    queue.start(count_to(250), 10, 0, 25, 0);
    for (int i = 0; i < 3; ++i) {
      queue.next();
    }
  }
  EXPECT_LE(numbers->reads.load(), 50);
}

TEST(BatchQueueTest, FlipsBySeedEpochAndSample) {
  // A set whose left and right pixels differ.
  class Halves final : public Dataset {
   public:
    int64_t size() const override { return 400; }
    int channels() const override { return 1; }
    std::vector<std::string> classes() const override { return {}; }
    int64_t label(int64_t) const override { return 0; }
    void read(int64_t, RawImage& image) const override {
      image.height = image.width = 2;
      image.channels = 1;
      image.storage = {0, 255, 0, 255};
      image.pixels = image.storage;
    }
  };
  auto halves = std::make_shared<Halves>();
  auto flips = [&](int workers, uint64_t seed, int64_t epoch) {
    BatchQueueOptions wanted = options(workers, 2);
    wanted.flip = true;
    wanted.seed = seed;
    BatchQueue queue(halves, wanted, allocate);
    queue.start(count_to(400), 64, 0, 7, epoch);
    std::vector<bool> result;
    while (auto batch = queue.next()) {
      for (int64_t i = 0; i < batch->size; ++i) {
        result.push_back(batch->images[i * 4] > 100);
      }
    }
    return result;
  };
  const auto base = flips(0, 1, 1);
  EXPECT_EQ(base, flips(3, 1, 1));
  EXPECT_NE(base, flips(1, 2, 1));
  EXPECT_NE(base, flips(1, 1, 2));
  EXPECT_NEAR(
      static_cast<double>(std::count(base.begin(), base.end(), true)), 200, 60);
}

TEST(BufferPoolTest, BlocksComeBack) {
  auto pool = std::make_unique<BufferPool>(10000, 2);
  auto a = pool->get();
  auto b = pool->get();
  auto c = pool->get();
  EXPECT_EQ(pool->allocations(), 3u);
  void* first = a.get();
  a.reset();
  EXPECT_EQ(pool->get().get(), first);
  b.reset();
  c.reset();
  for (int i = 0; i < 10; ++i) {
    auto d = pool->get();
    auto e = pool->get();
  }
  EXPECT_EQ(pool->allocations(), 3u);
  auto last = pool->get();
  pool.reset();
  static_cast<char*>(last.get())[9999] = 1;  // outlives the pool
}

}  // namespace
}  // namespace lockstep::data
