#include "lockstep/train/fit_batch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <thread>

#include "lockstep/train/stop_signal.h"

namespace lockstep::train {
namespace {

// Left free on top of what a step was seen to use: on a machine for everything
// else that runs there, on a GPU for fragments and library workspaces.
double margin_of(c10::Device device) {
  return device.is_cpu() ? .1 : .05;
}

// Puts back what trials may change.
class Untouched {
 public:
  Untouched(const std::vector<at::Tensor>& buffers, c10::Device device)
      : buffers_(buffers) {
    generators_ = {at::detail::getDefaultCPUGenerator()};
    if (!device.is_cpu()) {
      generators_.push_back(at::globalContext().defaultGenerator(device));
    }
    for (auto& generator : generators_) {
      std::lock_guard lock(generator.mutex());
      states_.push_back(generator.get_state().clone());
    }
    for (const auto& buffer : buffers_) {
      copies_.push_back(buffer.clone());
    }
  }
  ~Untouched() {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < generators_.size(); ++i) {
      std::lock_guard lock(generators_[i].mutex());
      generators_[i].set_state(states_[i]);
    }
    for (size_t i = 0; i < buffers_.size(); ++i) {
      buffers_[i].copy_(copies_[i]);
    }
  }
  Untouched(const Untouched&) = delete;
  Untouched& operator=(const Untouched&) = delete;

 private:
  std::vector<at::Tensor> buffers_;
  std::vector<at::Generator> generators_;
  std::vector<at::Tensor> states_;
  std::vector<at::Tensor> copies_;
};

// A trial that runs out of memory may spoil its thread: oneDNN's code generator
// keeps its error for ever, and every new shape fails there from then on. So
// each trial on the CPU has a thread of its own.
std::function<void(int64_t)> on_own_thread(
    const std::function<void(int64_t)>& trial) {
  return [&trial](int64_t batch) {
    std::exception_ptr failure;
    const at::ThreadLocalState state;
    std::thread([&] {
      const at::ThreadLocalStateGuard same(state);
      try {
        trial(batch);
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure) {
      std::rethrow_exception(failure);
    }
  };
}

class Fitting {
 public:
  Fitting(
      const Context& context,
      const BatchTrial& trial,
      collective::Communicator* group)
      : context_(context),
        trial_(trial),
        group_(group),
        untouched_(trial.buffers, context.device),
        run_(context.device.is_cpu() ? on_own_thread(trial.run) : trial.run),
        meter_(make_memory_meter(
            context.device,
            context.sharers,
            context.trainer.memory_limit)) {
    options_.margin = margin_of(context.device);
    options_.stop_signal = stop_signal;
    options_.estimate = trial.estimate;
    options_.deadly = context.device.is_cpu();
    if (context.device.is_cpu()) {
      // Batches ahead, the one in use, and those of an accumulated step.
      constexpr double kAhead = 4;
      options_.sample_bytes =
          trial.image_bytes *
          (kAhead + static_cast<double>(context.trainer.accumulate - 1));
    } else {
      // A room for each batch of an accumulated step, and one for the shorter
      // batch that ends an epoch.
      options_.sample_bytes =
          trial.device_bytes *
          static_cast<double>(context.trainer.accumulate + 1);
    }
  }

  void use(Recompute mode) {
    mode_ = mode;
    if (trial_.set_recompute) {
      trial_.set_recompute(mode);
    }
  }
  // Goes on with the first of `modes` in which `most` fits, or with the one
  // that has the largest batch.
  BatchFit largest(int64_t most, const std::vector<Recompute>& modes) {
    options_.most = most;
    return find_mode(
               modes.size(),
               [&](size_t mode) { use(modes[mode]); },
               run_,
               *meter_,
               group_,
               options_)
        .fit;
  }
  // For a number that was asked for.
  BatchFit fits(int64_t batch, const std::vector<Recompute>& modes) {
    options_.asked = true;
    const auto fit = largest(batch, modes);
    options_.asked = false;
    return fit;
  }
  // What to take instead, with the whole margin.
  BatchFit instead(const BatchFit& failed, int64_t batch) {
    options_.first = failed.batch;
    const auto found = failed.batch == 0 ? failed : largest(batch - 1, {mode_});
    return found.batch > 0 ? found : failed;
  }
  // By the recipe's rough word; equal on all ranks.
  bool comes_near(int64_t batch) {
    double room = static_cast<double>(meter_->limit());
    room -= static_cast<double>(meter_->peak());
    if (group_ != nullptr) {
      group_->all_reduce(
          &room, 1, collective::DataType::kFloat64, collective::ReduceOp::kMin);
    }
    return trial_.estimate * static_cast<double>(batch) > room / 2;
  }
  TrainError refusal(int64_t batch, const BatchFit& fit) const {
    const std::string mode =
        trial_.set_recompute
            ? fmt::format(" with trainer.recompute={}", to_string(mode_))
            : "";
    if (fit.batch == 0 && fit.failed > 0) {
      return TrainError(
          kBadInput,
          fmt::format(
              "allocation failed at a batch of {}{}, although {} a rank seem "
              "to be there; raise this process's limit (ulimit -v, -d), end "
              "what else takes memory, or take a smaller model or "
              "data.image_size",
              fit.failed,
              mode,
              size(fit.limit)));
    }
    if (fit.batch == 0) {
      return TrainError(
          kBadInput,
          fmt::format(
              "not even a batch of 1 fits into {} a rank{}; take a smaller "
              "model, a smaller data.image_size or more memory",
              size(fit.limit),
              mode));
    }
    return TrainError(
        kBadInput,
        fmt::format(
            "data.batch_size={} does not fit into {} a rank ({:.0f}% are kept "
            "free); {} that fits{} is {}: take that, "
            "data.batch_size=auto, a larger trainer.accumulate{}",
            batch,
            size(fit.limit),
            options_.margin * 100,
            fit.largest ? "the largest" : "one",
            mode,
            fit.batch,
            mode_ == Recompute::kBlock || !trial_.set_recompute
                ? ""
                : " or trainer.recompute=block"));
  }
  FittedBatch fitted(const BatchFit& fit) const {
    return {mode_, fmt::format("{} of {}", size(fit.peak), size(fit.limit))};
  }
  void say(const BatchFit& fit) const {
    if (context_.rank() == 0) {
      std::printf(
          "%s%s\n",
          fit.to_string(options_.margin).c_str(),
          trial_.set_recompute
              ? fmt::format(", recompute {}", to_string(mode_)).c_str()
              : "");
      std::fflush(stdout);
    }
  }

 private:
  static std::string size(double bytes) {
    return format_bytes(Bytes{static_cast<uint64_t>(std::max(0., bytes))});
  }
  const Context& context_;
  const BatchTrial& trial_;
  collective::Communicator* group_;
  Untouched untouched_;
  std::function<void(int64_t)> run_;
  std::unique_ptr<MemoryMeter> meter_;
  BatchSearchOptions options_;
  Recompute mode_ = Recompute::kNone;
};

std::vector<Recompute> modes_of(const Context& context) {
  return context.trainer.recompute == "auto"
             ? recompute_modes()
             : std::vector{recompute_from(context.trainer.recompute)};
}

FittedBatch
search(DataConfig& data, const Context& context, const BatchTrial& trial) {
  Fitting fitting(context, trial, context.group);
  auto modes = modes_of(context);
  if (data.batch_cap == 0) {
    // Nobody asked for a size: what fits without computing twice.
    modes.resize(1);
  }
  const int64_t most =
      data.batch_cap > 0 ? std::min(data.batch_cap, trial.shard) : trial.shard;
  const auto best = fitting.largest(most, modes);
  if (best.batch == 0) {
    throw fitting.refusal(1, best);
  }
  data.batch_size = best.batch;
  fitting.say(best);
  return fitting.fitted(best);
}

}  // namespace

FittedBatch
fit_batch(DataConfig& data, const Context& context, const BatchTrial& trial) {
  if (data.batch_size == 0) {
    return search(data, context, trial);
  }
  Fitting fitting(context, trial, context.group);
  const auto modes = modes_of(context);
  fitting.use(modes.front());
  if (!fitting.comes_near(data.batch_size)) {
    return {modes.front(), ""};
  }
  const auto fit = fitting.fits(data.batch_size, modes);
  if (fit.batch != data.batch_size) {
    throw fitting.refusal(
        data.batch_size, fitting.instead(fit, data.batch_size));
  }
  fitting.say(fit);
  return fitting.fitted(fit);
}

TrainError
batch_failure(int64_t batch, const Context& context, const BatchTrial& trial) {
  Fitting fitting(context, trial, nullptr);
  return fitting.refusal(
      batch,
      fitting.largest(
          std::max<int64_t>(1, batch - 1), {modes_of(context).back()}));
}

}  // namespace lockstep::train
