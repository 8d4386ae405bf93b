#include "lockstep/data/loader.h"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/check.h"
#include "lockstep/data/batch_queue.h"
#include "lockstep/data/buffer_pool.h"
#include "lockstep/data/sampler.h"

namespace lockstep::data {
namespace {

void expect(bool good, const char* key, int64_t value, const char* accepted) {
  if (!good) {
    throw DataError(
        fmt::format("data.{} = {}; accepted: {}", key, value, accepted));
  }
}

Dataset::Size size_of(const LoaderOptions& options) {
  return {
      options.image_height != 0 ? options.image_height : options.image_size,
      options.image_width != 0 ? options.image_width : options.image_size};
}

void validate(const Dataset* dataset, const LoaderOptions& options) {
  if (dataset == nullptr || dataset->size() < 1) {
    throw DataError("the data set is empty");
  }
  expect(
      options.batch_size >= 1, "batch_size", options.batch_size, "1 and more");
  expect(
      options.image_size >= 1 && options.image_size <= 65536,
      "image_size",
      options.image_size,
      "1 to 65536");
  const auto side = size_of(options);
  expect(
      side.height >= 1 && side.height <= 65536,
      "image_height",
      side.height,
      "1 to 65536");
  expect(
      side.width >= 1 && side.width <= 65536,
      "image_width",
      side.width,
      "1 to 65536");
  expect(
      options.shrink == 0 ||
          (options.shrink > 0 && side.height % options.shrink == 0 &&
           side.width % options.shrink == 0 && !options.pixels),
      "shrink",
      options.shrink,
      "0, or what divides height and width of images that are resized here");
  expect(
      options.workers >= 0 && options.workers <= 1024,
      "workers",
      options.workers,
      "0 to 1024");
  expect(options.prefetch >= 1, "prefetch", options.prefetch, "1 and more");
  expect(options.world >= 1, "world", options.world, "1 and more");
  expect(
      options.rank >= 0 && options.rank < options.world,
      "rank",
      options.rank,
      "0 to the world less 1");
}

ShardOptions shard_options(const Dataset& data, const LoaderOptions& options) {
  ShardOptions result;
  result.size = data.size();
  result.rank = options.rank;
  result.world = options.world;
  result.seed = options.seed;
  result.shuffle = options.shuffle;
  result.pad = options.pad;
  return result;
}

BatchQueueOptions queue_options(const LoaderOptions& options) {
  BatchQueueOptions result;
  const bool crop = options.crop_from > options.image_size;
  result.resize.height = crop ? options.crop_from : size_of(options).height;
  result.resize.width = crop ? options.crop_from : size_of(options).width;
  result.crop = crop ? options.image_size : 0;
  result.resize.resize = options.resize;
  result.resize.mean = options.mean;
  result.resize.stddev = options.stddev;
  result.resize.channels_last = options.channels_last;
  if (options.shrink > 0) {
    result.small = result.resize;
    result.small->height /= options.shrink;
    result.small->width /= options.shrink;
  }
  result.flip = options.flip;
  result.pixels = options.pixels;
  result.seed = options.seed;
  result.workers = options.workers;
  result.prefetch = options.prefetch;
  return result;
}

}  // namespace

struct Loader::Impl {
  LoaderOptions options;
  ShardOptions shard;
  int64_t num_batches = 0;      // in a pass through the data set
  int64_t position = 0;         // of the next batch, over all passes
  int64_t end = 0;              // of the epoch
  std::vector<int64_t> shares;  // empty: equal
  size_t image_bytes = 0;
  int channels = 0;
  Dataset::Size size;  // of a tensor's images
  bool pinned = false;
  // Before the queue, which asks it for memory until it is gone.
  std::optional<BufferPool> pool;
  std::optional<BatchQueue> queue;

  void make_pool(int64_t samples) {
    pool.emplace(
        static_cast<size_t>(std::max<int64_t>(samples, 1)) * image_bytes,
        static_cast<size_t>(options.prefetch) + 2);
  }

  // Of all ranks, in batch `index`.
  int64_t all_samples(int64_t index) const {
    const int64_t batch = options.batch_size * options.world;
    return std::min(batch, shard_size(shard) * options.world - index * batch);
  }

  at::Tensor make_images(int64_t count) {
    const int64_t high = size.height;
    const int64_t wide = size.width;
    const auto type = options.pixels ? at::kByte : at::kFloat;
    const bool last = options.channels_last || options.pixels;
    const std::array<int64_t, 4> sizes = {count, channels, high, wide};
    const std::array<int64_t, 4> strides =
        last ? std::array<
                   int64_t,
                   4>{high * wide * channels, 1, wide * channels, channels}
             : std::array<int64_t, 4>{
                   high * wide * channels, high * wide, wide, 1};
    if (pinned) {
      // LibTorch's page-locked blocks wait for the copies made from them
      // before they are used again; ours could not know.
      return at::empty(
          sizes,
          at::TensorOptions().dtype(type).pinned_memory(true),
          last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
    }
    std::shared_ptr<void> block = pool->get();
    void* data = block.get();
    return at::from_blob(
        data,
        sizes,
        strides,
        [block = std::move(block)](void*) mutable { block.reset(); },
        at::TensorOptions().dtype(type));
  }

  void start_pass() {
    const int64_t pass = position / num_batches;
    const int64_t first = position % num_batches;
    const int64_t last = std::min(num_batches, end - pass * num_batches);
    if (!shares.empty()) {
      queue->start(
          uneven_shard(shard, shares, pass, first),
          shares[static_cast<size_t>(options.rank)],
          0,
          last - first,
          pass);
      return;
    }
    queue->start(
        data::shard(shard, pass), options.batch_size, first, last, pass);
  }

  // The tensors are made here, on the consumer's thread; workers see memory.
  BatchMemory allocate(int64_t count) {
    auto batch = std::make_shared<Batch>();
    batch->images = make_images(count);
    batch->labels = at::empty(
        {count}, at::TensorOptions().dtype(at::kLong).pinned_memory(pinned));
    batch->size = count;
    BatchMemory memory;
    if (options.shrink > 0) {
      batch->small = at::empty(
          {count,
           channels,
           size.height / options.shrink,
           size.width / options.shrink},
          at::TensorOptions().dtype(at::kFloat).pinned_memory(pinned),
          options.channels_last ? at::MemoryFormat::ChannelsLast
                                : at::MemoryFormat::Contiguous);
      memory.small = batch->small.data_ptr<float>();
    }
    if (options.pixels) {
      memory.pixels = batch->images.data_ptr<uint8_t>();
    } else {
      memory.images = batch->images.data_ptr<float>();
    }
    memory.labels = batch->labels.data_ptr<int64_t>();
    memory.owner = std::move(batch);
    return memory;
  }
};

Loader::Loader(
    std::shared_ptr<const Dataset> dataset,
    const LoaderOptions& options)
    : impl_(std::make_unique<Impl>()) {
  validate(dataset.get(), options);
  Impl& impl = *impl_;
  impl.options = options;
  impl.shard = shard_options(*dataset, options);
  impl.channels = dataset->channels();
  impl.pinned = options.pinned && at::hasCUDA();
  const int64_t count = shard_size(impl.shard);
  impl.num_batches =
      options.drop_last ? count / options.batch_size
                        : (count + options.batch_size - 1) / options.batch_size;
  if (options.drop_last && impl.num_batches == 0) {
    throw DataError(
        fmt::format(
            "data.batch_size = {} is larger than the shard of a rank: {} of "
            "{} samples over {} ranks",
            options.batch_size,
            count,
            dataset->size(),
            options.world));
  }
  impl.size = options.pixels ? dataset->image_size() : size_of(options);
  if (impl.size.height < 1) {
    throw DataError(
        "images of different sizes cannot stay as they are: resize them in "
        "the loader");
  }
  impl.image_bytes = static_cast<size_t>(impl.size.height) *
                     static_cast<size_t>(impl.size.width) *
                     static_cast<size_t>(impl.channels) *
                     (options.pixels ? 1 : sizeof(float));
  // A batch larger than the shard never fills.
  impl.make_pool(std::min(options.batch_size, count));
  impl.queue.emplace(
      std::move(dataset), queue_options(options), [&impl](int64_t size) {
        return impl.allocate(size);
      });
}

Loader::~Loader() = default;

void Loader::start(int64_t epoch, int64_t first) {
  expect(first >= 0, "first batch", first, "0 and more");
  impl_->position = epoch * batches() + first;
  impl_->end = (epoch + 1) * batches();
  if (impl_->num_batches == 0) {  // fewer samples than ranks, and no padding
    impl_->end = impl_->position;
    return;
  }
  impl_->start_pass();
}

void Loader::share(const std::vector<int64_t>& shares) {
  Impl& impl = *impl_;
  LOCKSTEP_CHECK_EQ(shares.size(), static_cast<size_t>(impl.options.world));
  const int64_t sum = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  LOCKSTEP_CHECK_EQ(sum, impl.options.batch_size * impl.options.world);
  LOCKSTEP_CHECK(impl.options.pad);
  impl.shares = shares;
  const int64_t mine = shares[static_cast<size_t>(impl.options.rank)];
  if (static_cast<size_t>(mine) * impl.image_bytes > impl.pool->bytes()) {
    impl.make_pool(mine);  // blocks of the old one outlive it
  }
}

std::optional<Batch> Loader::next() {
  Impl& impl = *impl_;
  if (impl.position >= impl.end) {
    return std::nullopt;
  }
  std::optional<BatchMemory> memory = impl.queue->next();
  if (!memory) {  // a pass ended within the epoch
    impl.start_pass();
    memory = impl.queue->next();
  }
  Batch batch = std::move(*std::static_pointer_cast<Batch>(memory->owner));
  batch.all = impl.options.pad
                  ? impl.all_samples(impl.position % impl.num_batches)
                  : batch.size * impl.options.world;
  ++impl.position;
  return batch;
}

int64_t Loader::batches() const {
  const int64_t wanted = impl_->options.epoch_batches;
  return wanted > 0 ? wanted : impl_->num_batches;
}

int64_t Loader::batch_size() const {
  return impl_->options.batch_size;
}

}  // namespace lockstep::data
