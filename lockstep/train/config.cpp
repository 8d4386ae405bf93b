#include "lockstep/train/config.h"

#include <fmt/format.h>

#include <charconv>

#include "lockstep/data/dataset.h"

namespace lockstep::train {

using config::above;
using config::at_least;
using config::between;

namespace {

struct BatchWish {
  int64_t size = 0;  // 0: auto
  int64_t cap = 0;
};

// "64", "auto" or "auto:4096".
Result<BatchWish> read_batch(const std::string& text) {
  BatchWish wish;
  constexpr std::string_view kAuto = "auto:";
  const bool capped = text.starts_with(kAuto);
  if (text == "auto") {
    return wish;
  }
  const std::string_view digits =
      std::string_view(text).substr(capped ? kAuto.size() : 0);
  int64_t number = 0;
  const auto [end, failure] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (failure != std::errc() || end != digits.data() + digits.size() ||
      number < 1) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "'{}' is no batch size; accepted: a whole number from 1, auto, "
            "auto:MAX",
            text));
  }
  (capped ? wish.cap : wish.size) = number;
  return wish;
}

std::string batch_text(const DataConfig& data) {
  return data.batch_size > 0  ? std::to_string(data.batch_size)
         : data.batch_cap > 0 ? fmt::format("auto:{}", data.batch_cap)
                              : "auto";
}

}  // namespace

void TrainerConfig::bind(config::Binder& b) {
  b.field("max_epochs", max_epochs, "epochs to train", at_least(0));
  b.field("min_epochs", min_epochs, "no other limit ends before", at_least(0));
  b.field("max_steps", max_steps, "steps to train; 0: no limit", at_least(0));
  b.field(
      "max_seconds", max_seconds, "seconds to train; 0: no limit", at_least(0));
  b.field(
      "early_stop",
      early_stop,
      "validations in a row without a better one that end training; 0: never",
      at_least(0));
  b.choice(
      "strategy",
      strategy,
      {"auto", "single", "ddp", "fsdp"},
      "auto: single with one rank, else ddp; fsdp: sharded");
  b.choice(
      "precision", precision, {"fp32", "tf32", "bf16"}, "of the arithmetic");
  b.choice("device", device, {"auto", "cpu", "cuda"}, "auto: cuda when there");
  b.field("devices", devices, "ranks a node; 0: as started", at_least(0));
  b.field("num_nodes", num_nodes, "nodes; 0: as started", at_least(0));
  b.field("accumulate", accumulate, "batches a step", at_least(1));
  b.field("seed", seed, "of weights, order and noise", at_least(0));
  b.field("log_every", log_every, "steps between rows of metrics", at_least(1));
  b.field(
      "trace_steps",
      trace_steps,
      "steps that rank 0 writes as trace.json, after the first 20",
      at_least(0));
  b.field(
      "rehearse",
      rehearse,
      "for probes: an epoch's end after so many steps, validated in part",
      at_least(0));
  b.field(
      "checkpoint_every",
      checkpoint_every,
      "steps between checkpoints; 0: each epoch",
      at_least(0));
  b.field("checkpoint_dir", checkpoint_dir, "default: checkpoints/ of the run");
  b.choice(
      "checkpoint_format",
      checkpoint_format,
      {"auto", "full", "sharded"},
      "auto: a folder of shards with fsdp, else one file");
  b.field("resume", resume, "none, auto (last checkpoint) or a file");
  b.choice(
      "collective",
      collective,
      {"auto", "host", "mpi", "nccl"},
      "how ranks exchange gradients");
  b.choice(
      "recompute",
      recompute,
      {"none", "attention", "block", "auto"},
      "computed again in backward to save memory; auto: as little as lets the "
      "batch fit");
  b.choice(
      "balance",
      balance,
      {"none", "auto"},
      "auto: each rank's share of the global batch follows its speed");
  b.field(
      "memory_limit", memory_limit, "memory a rank may use; 0: what is free");
  b.field("timeout", timeout, "how long a rank waits for another", above(0));
}

void DataConfig::bind(config::Binder& b) {
  b.choice("name", name, data::dataset_names(), "data set");
  b.field("root", root, "its folder; default: the cache of 'data get'");
  std::string batch = batch_text(*this);
  b.text(
      "batch_size",
      batch,
      "samples a rank and batch; auto or auto:MAX: the largest that fits",
      [](const std::string& text) -> Result<void> {
        LOCKSTEP_TRY(read_batch(text));
        return {};
      });
  if (const auto read = read_batch(batch)) {
    batch_size = read->size;
    batch_cap = read->cap;
  }
  b.field(
      "global_batch_size",
      global_batch_size,
      "samples of all ranks; 0: batch_size x ranks",
      at_least(0));
  b.field("workers", workers, "loader threads a rank", between(0, 256));
  b.field("image_size", image_size, "pixels a side", between(4, 4096));
  b.field(
      "limit",
      limit,
      "N samples only, the first ones or, of class folders, evenly; 0: all",
      at_least(0));
  b.field("length", length, "samples of synthetic data", between(1, 1e9));
  b.field("channels", channels, "of synthetic data", between(1, 3));
  b.field("classes", classes, "of synthetic data", between(1, 1000));
  b.field(
      "max_skipped",
      max_skipped,
      "share of a folder's images that may be unreadable or too small",
      between(0, 1));
}

void OptimConfig::bind(config::Binder& b) {
  b.choice("name", name, {"adam", "adamw", "sgd"}, "optimiser");
  b.field("lr", lr, "learning rate", above(0));
  // Adam divides by 1 - beta^step.
  const config::Bound below_one{
      [](double value) { return value >= 0 && value < 1; },
      "at least 0, below 1"};
  b.field("beta1", beta1, "Adam's first moment", below_one);
  b.field("beta2", beta2, "Adam's second moment", below_one);
  b.field("eps", eps, "Adam's epsilon", above(0));
  b.field("momentum", momentum, "of sgd", between(0, 1));
  b.field("weight_decay", weight_decay, "decoupled for adamw", at_least(0));
  b.field("clip", clip, "largest gradient norm; 0: none", at_least(0));
  b.choice(
      "schedule",
      schedule,
      {"constant", "linear", "cosine", "inverse"},
      "how the learning rate moves after the warm-up");
  b.field("warmup_steps", warmup_steps, "linear rise from 0", at_least(0));
  b.field("min_lr", min_lr, "where the schedule ends", at_least(0));
  b.field(
      "lr_gamma",
      lr_gamma,
      "inverse schedule: lr x (1 + lr_gamma x step) ^ -lr_decay",
      at_least(0));
  b.field("lr_decay", lr_decay, "its exponent", at_least(0));
}

Result<void>
check_and_complete(TrainerConfig& trainer, DataConfig& data, int world_size) {
  if (trainer.devices > 0 || trainer.num_nodes > 0) {
    const int64_t nodes = std::max<int64_t>(1, trainer.num_nodes);
    const int64_t devices = std::max<int64_t>(1, trainer.devices);
    // One of the two leaves the other to the launcher.
    const bool both = trainer.num_nodes > 0 && trainer.devices > 0;
    const bool fits = both || world_size == 1
                          ? nodes * devices == world_size
                          : world_size % (nodes * devices) == 0;
    if (!fits) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "trainer.devices={} x trainer.num_nodes={} asks for {} ranks, "
              "but the launcher started {}",
              devices,
              nodes,
              nodes * devices,
              world_size));
    }
  }
  if (trainer.resume.empty()) {
    return Error(
        ErrorCode::kInvalidInput,
        "trainer.resume= is empty; accepted: none, auto, or a checkpoint");
  }
  if (trainer.strategy == "single" && world_size > 1) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "trainer.strategy=single, but the launcher started {} ranks; use "
            "trainer.strategy=ddp",
            world_size));
  }
  if (trainer.checkpoint_format == "sharded" && trainer.strategy != "fsdp") {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "trainer.checkpoint_format=sharded needs trainer.strategy=fsdp, "
            "not {}; accepted here: auto, full",
            trainer.strategy));
  }
  if (trainer.balance == "auto" && trainer.strategy == "fsdp") {
    return Error(
        ErrorCode::kInvalidInput,
        "trainer.balance=auto needs trainer.strategy=ddp, not fsdp; accepted "
        "here: none");
  }
  if (trainer.balance == "auto" && data.batch_size == 0) {
    return Error(
        ErrorCode::kInvalidInput,
        "trainer.balance=auto gives fast ranks more than data.batch_size=auto "
        "found to fit: give data.batch_size or data.global_batch_size");
  }
  if (trainer.max_epochs == 0 && trainer.max_steps == 0 &&
      trainer.max_seconds == 0) {
    return Error(
        ErrorCode::kInvalidInput,
        "trainer.max_epochs, max_steps and max_seconds are all 0: training "
        "would never end");
  }
  if (trainer.max_epochs > 0 && trainer.min_epochs > trainer.max_epochs) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "trainer.min_epochs={} is more than trainer.max_epochs={}",
            trainer.min_epochs,
            trainer.max_epochs));
  }
  if (data.global_batch_size > 0 && data.batch_size == 0) {
    return Error(
        ErrorCode::kInvalidInput,
        "data.batch_size=auto finds the batch itself: leave out "
        "data.global_batch_size");
  }
  if (data.global_batch_size > 0) {
    const int64_t parts = world_size * trainer.accumulate;
    if (data.global_batch_size % parts != 0) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format(
              "data.global_batch_size={} is not a multiple of {} (ranks x "
              "trainer.accumulate)",
              data.global_batch_size,
              parts));
    }
    data.batch_size = data.global_batch_size / parts;
  }
  return {};
}

}  // namespace lockstep::train
