#include "lockstep/recipes/session.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/cuda.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/log.h"
#include "lockstep/collective/nccl.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/host.h"
#include "lockstep/os/process.h"
#include "lockstep/recipes/registry.h"
#include "lockstep/recipes/same_on_ranks.h"
#include "lockstep/recipes/test_verb.h"
#include "lockstep/record/event_log.h"
#include "lockstep/train/allocator.h"
#include "lockstep/train/closing.h"
#include "lockstep/train/error.h"
#include "lockstep/train/group.h"
#include "lockstep/train/loop.h"
#include "lockstep/train/memory.h"
#include "lockstep/train/monitor.h"
#include "lockstep/train/precision.h"
#include "lockstep/train/step_graph.h"
#include "lockstep/train/stop_signal.h"

namespace lockstep::recipes {
namespace {

namespace fs = std::filesystem;
using train::kBadInput;
using train::kFailed;
using train::TrainError;

constexpr auto kResourcePeriod = std::chrono::seconds(2);

template <class T>
T input_or_throw(Result<T> result) {
  if (!result) {
    throw TrainError(kBadInput, result.error().to_string());
  }
  if constexpr (!std::is_void_v<T>) {
    return std::move(*result);
  }
}

// When the process began, from the kernel: start-up is part of what is told.
double process_start() {
  std::ifstream stat("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  const double now = os::real_clock().unix_seconds();
  double uptime = 0;
  std::ifstream("/proc/uptime") >> uptime;
  // Field 22, counted after the name in parentheses, which may hold spaces.
  const auto after_name = text.rfind(')');
  if (after_name == std::string::npos || uptime <= 0) {
    return now;
  }
  long long ticks = 0;
  size_t at = after_name + 2;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) {
    at = text.find(' ', at);
    at = at == std::string::npos ? at : at + 1;
  }
  if (at != std::string::npos) {
    ticks = std::strtoll(text.c_str() + at, nullptr, 10);
  }
  const double age = uptime - static_cast<double>(ticks) /
                                  static_cast<double>(sysconf(_SC_CLK_TCK));
  return now - std::max(0., age);
}

c10::Device choose_device(
    const std::string& wanted,
    const train::RankEnvironment& environment) {
  const bool there = torch::cuda::is_available();
  if (wanted == "cuda" && !there) {
    throw TrainError(
        kBadInput,
        "trainer.device=cuda, but no GPU is usable here; trainer.device=cpu "
        "or a CUDA build of LibTorch with a driver");
  }
  if (wanted == "auto" && !there && environment.rank == 0) {
    log_warning(
        "no GPU is usable here (no driver, or a LibTorch without CUDA): "
        "computing on the CPU; trainer.device=cpu asks for it");
  }
  if (wanted == "cpu" || !there) {
    return at::kCPU;
  }
  const auto count = static_cast<int>(torch::cuda::device_count());
  const c10::Device device(
      at::kCUDA, static_cast<c10::DeviceIndex>(environment.local_rank % count));
  // What names no device, like pinned memory, must not wake the first GPU.
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(device);
  return device;
}

void set_threads(const train::RankEnvironment& environment) {
  if (std::getenv("OMP_NUM_THREADS") == nullptr) {
    at::set_num_threads(
        std::max(
            1,
            os::host_facts().cores /
                std::max(1, environment.local_world_size)));
  }
}

// Ranks that take their memory from where this one does. Each may see one GPU
// alone (CUDA_VISIBLE_DEVICES), so GPUs are told apart by their addresses.
int memory_sharers(
    c10::Device device,
    const train::RankEnvironment& environment,
    collective::Communicator& group) {
  if (device.is_cpu()) {
    return environment.local_world_size;
  }
  const std::string address = collective::gpu_address(device.index());
  if (address.empty()) {  // a build without NCCL
    const auto devices = static_cast<int>(torch::cuda::device_count());
    return (environment.local_world_size + devices - 1) / devices;
  }
  std::vector<int64_t> all(static_cast<size_t>(group.size()));
  auto& own = all[static_cast<size_t>(group.rank())];
  own = crc32c(os::host_facts().hostname + "/" + address);
  const int64_t mine = own;
  group.all_gather(all.data(), 1, collective::DataType::kInt64);
  return static_cast<int>(std::ranges::count(all, mine));
}

// `trained`: what a checkpoint was trained with, below the command line.
Prepared
prepare(const Command& command, int world_size, const std::string& trained) {
  const Entry* entry = input_or_throw(find_recipe(command.recipe));
  auto base = input_or_throw(load_config(command));
  if (command.config_file.empty() && !trained.empty()) {
    base = input_or_throw(trained_base(trained, command));
  }
  auto node = input_or_throw(
      config::resolve(make_groups(*entry), std::move(base), command.arguments));
  // A shell does not do it after the = of a key.
  node = config::with_home(std::move(node), os::home_folder());
  return input_or_throw(entry->prepare(node, world_size));
}

fs::path checkpoint_folder(
    const Prepared& prepared,
    const record::RunDirectory& run,
    const train::RankEnvironment& environment) {
  return !prepared.trainer.checkpoint_dir.empty()
             ? fs::path(prepared.trainer.checkpoint_dir)
         : !environment.checkpoints.empty() ? fs::path(environment.checkpoints)
                                            : run.checkpoints();
}

// Nobody goes on with what this folder has: a checkpoint from elsewhere is of
// another run.
bool begins_anew(
    const Prepared& prepared,
    const record::RunDirectory& run,
    const train::RankEnvironment& environment) {
  const std::string& from = prepared.trainer.resume;
  if (from == "none" || from == "auto" || environment.generation > 0) {
    return from == "none" && environment.generation == 0;
  }
  const fs::path file(from);
  const auto real = [](const fs::path& path) {
    std::error_code unknown;
    return fs::weakly_canonical(fs::absolute(path), unknown);
  };
  return real(file.has_filename() ? file : file.parent_path()).parent_path() !=
         real(checkpoint_folder(prepared, run, environment));
}

// Rank 0 makes or opens the folder; the others follow.
record::RunDirectory open_run(
    const Prepared& prepared,
    const std::string& recipe,
    const train::RankEnvironment& environment,
    collective::Communicator& group) {
  if (!environment.run_dir.empty() && !prepared.out.empty() &&
      group.rank() == 0) {
    log_warning(
        fmt::format(
            "out={} splits this run: lockstep has its run directory in {}, "
            "with "
            "the checkpoints that trainer.resume=auto looks for; leave out= "
            "away, or move all runs by --runs-dir",
            prepared.out,
            environment.run_dir));
  }
  if (!environment.run_dir.empty() && prepared.out.empty()) {
    return input_or_throw(record::RunDirectory::open(environment.run_dir));
  }
  std::string path;
  std::string failure;
  if (group.rank() == 0) {
    auto made = prepared.out.empty()
                    ? record::RunDirectory::create("runs", recipe)
                    : record::RunDirectory::open(prepared.out);
    if (made) {
      path = made->path().string();
    } else {
      failure = made.error().to_string();
    }
  }
  failure = train::broadcast_text(failure, group);
  if (!failure.empty()) {
    throw TrainError(kBadInput, failure);
  }
  return input_or_throw(
      record::RunDirectory::open(train::broadcast_text(path, group)));
}

std::unique_ptr<train::Recipe> build(
    const Prepared& prepared,
    const train::Context& context) {
  check_same_config(prepared.config, *context.group);
  auto recipe = prepared.build(context);
  check_same_data(recipe->datasets(), *context.group);
  return recipe;
}

struct Sitting {
  train::RankEnvironment environment;
  double started = 0;
  std::optional<record::RunDirectory> run;  // once there are events
  std::unique_ptr<record::EventWriter> events;
};

void print_result(
    const train::LoopResult& result,
    const record::RunDirectory& run) {
  std::printf(
      "done: %lld steps, %.1f s",
      static_cast<long long>(result.steps),
      result.seconds);
  if (result.samples_per_second > 0) {  // the first step is not counted
    std::printf(", %.1f samples/s", result.samples_per_second);
  }
  for (const auto& [name, value] : result.metrics) {
    std::printf(", %s %.4g", name.c_str(), value);
  }
  if (result.best) {
    std::printf(", best %s %.4g", result.best_metric.c_str(), *result.best);
  }
  std::printf("\nrun directory: %s\n", run.path().c_str());
}

void open_events(const record::RunDirectory& run, Sitting& sitting) {
  const auto& environment = sitting.environment;
  const std::string path = environment.events.empty()
                               ? run.rank_events(environment.rank).string()
                               : environment.events;
  sitting.events = input_or_throw(
      record::EventWriter::open(
          os::real_files(), path, environment.rank, os::host_facts().hostname));
  sitting.run = run;
}

// The folder of this sitting. What is told goes there at once, but for a folder
// that a run was in before: until begin_events() that run stays as it is, so
// that a start which is refused has lost nothing. What lockstep launched has
// its own writers.
record::RunDirectory open_sitting(
    const Command& command,
    const Prepared& prepared,
    Sitting& sitting,
    collective::Communicator& group) {
  const auto& environment = sitting.environment;
  auto run = open_run(prepared, command.recipe, environment, group);
  int64_t used =
      group.rank() == 0 && environment.launcher != "lockstep" && run.is_used();
  group.broadcast(&used, 1, collective::DataType::kInt64, 0);
  if (used == 0) {
    open_events(run, sitting);
  }
  return run;
}

// What was given is good: events begin, and what an old run would add to goes.
// All ranks together.
void begin_events(
    const Prepared& prepared,
    const record::RunDirectory& run,
    Sitting& sitting,
    collective::Communicator& group) {
  if (sitting.events) {
    return;
  }
  std::string failure;
  if (group.rank() == 0 && begins_anew(prepared, run, sitting.environment)) {
    if (const auto begun = run.start_anew(); !begun) {
      failure = begun.error().to_string();
    }
  }
  failure = train::broadcast_text(failure, group);
  if (!failure.empty()) {
    throw TrainError(kBadInput, failure);
  }
  open_events(run, sitting);
}

// By rank 0, unless the launcher has done so.
void write_job(
    const Command& command,
    const Prepared& prepared,
    const record::RunDirectory& run,
    const train::RankEnvironment& environment) {
  if (environment.rank == 0 && environment.launcher != "lockstep") {
    input_or_throw(
        os::real_files().write_atomic(
            run.job(), "recipe: " + command.recipe + "\n" + prepared.config));
  }
}

// Without a coordinator rank 0 does it.
void close_run(const Command& command, const Sitting& sitting) {
  if (sitting.environment.launcher == "lockstep" ||
      sitting.environment.rank != 0) {
    return;
  }
  auto arguments = command.arguments;
  if (!command.config_file.empty()) {
    arguments.insert(arguments.begin(), {"--config", command.config_file});
  }
  train::close_run(*sitting.run, command.recipe, arguments);
}

// Everybody's events are on disk.
void close_events(
    const Command& command,
    const Sitting& sitting,
    collective::Communicator& group) {
  sitting.events->flush();
  if (sitting.environment.launcher != "lockstep") {
    group.barrier();
  }
  close_run(command, sitting);
}

// Nobody waits for the others: what they have written by now is in it.
void close_failed(
    const Command& command,
    const Sitting& sitting,
    int code,
    const std::string& reason) {
  if (!sitting.events) {
    return;
  }
  sitting.events->write(wire::Exit{code, 0, reason});
  sitting.events->flush();
  try {
    close_run(command, sitting);
  } catch (const std::exception& failure) {
    log_warning(fmt::format("closing the run: {}", failure.what()));
  }
}

// A recipe that has no step loop.
int run_own(
    const Command& command,
    const Prepared& prepared,
    Sitting& sitting,
    collective::Communicator& group) {
  OwnRun own;
  own.verb = command.verb;
  own.config = prepared.config;
  own.group = &group;
  own.environment = &sitting.environment;
  own.started = sitting.started;
  if (command.verb != "train") {
    return prepared.run(own);
  }
  const auto run = open_sitting(command, prepared, sitting, group);
  own.directory = &run;
  int code = 0;
  {
    std::optional<train::Monitor> monitor;
    own.begin = [&]() -> record::EventWriter& {
      begin_events(prepared, run, sitting, group);
      write_job(command, prepared, run, sitting.environment);
      monitor.emplace(*sitting.events, kResourcePeriod, std::nullopt);
      return *sitting.events;
    };
    code = prepared.run(own);
  }
  sitting.events->write(wire::Exit{code, 0, ""});
  close_events(command, sitting, group);
  return code;
}

// Alone, 'test' tells what is wrong with its checkpoint before it looks at
// anything else: without the checkpoint's configuration the rest is a guess.
// Several ranks ask rank 0 once they are a group.
void refuse_bad_checkpoint(
    const Command& command,
    const train::RankEnvironment& environment) {
  const bool may_be_in_file = !command.config_file.empty();
  const auto path = named_checkpoint(command);
  if (command.verb != "test" || environment.world_size > 1 ||
      (path.empty() && may_be_in_file)) {
    return;
  }
  const auto failure = checkpoint_failure(path, command.recipe);
  if (!failure.empty()) {
    throw TrainError(kBadInput, failure);
  }
}

// Whoever leaves the verb away, or means to go on, would train from scratch.
void refuse_checkpoint_for_training(
    const Command& command,
    const Prepared& prepared) {
  const auto path = named_checkpoint(command);
  if (command.verb != "train" || path.empty()) {
    return;
  }
  throw TrainError(
      kBadInput,
      fmt::format(
          "checkpoint= is not for training: 'lockstep-train {} test "
          "checkpoint={}' tests it{}",
          command.recipe,
          path,
          prepared.run
              ? ""
              : fmt::format(", trainer.resume={} goes on from it", path)));
}

int train_recipe(const Command& command, Sitting& sitting) {
  auto& environment = sitting.environment;
  environment = input_or_throw(train::read_rank_environment(os::environment()));
  init_log({.rank = environment.world_size > 1 ? environment.rank : -1});
  refuse_bad_checkpoint(command, environment);
  std::string trained = command.verb == "test" || command.verb == "predict"
                            ? trained_config(command)
                            : std::string();
  Prepared prepared = prepare(command, environment.world_size, trained);
  refuse_checkpoint_for_training(command, prepared);
  const auto device = choose_device(prepared.trainer.device, environment);
  set_threads(environment);
  train::install_caching_allocator();
  train::join_freed_memory(device);
  train::apply_precision(device, prepared.trainer.precision);

  train::Group group(
      environment,
      prepared.trainer.collective,
      prepared.trainer.timeout,
      device);
  if (prepared.run) {
    return run_own(command, prepared, sitting, group.communicator());
  }
  // The loop alone looks for them, and until there is a group no loop begins;
  // whatever else runs ends as any program does, for what it writes has its
  // name only when it is whole.
  if (command.verb == "train") {
    train::install_stop_signals();
  }
  if (group.communicator().name() != "nccl") {
    train::use_own_stream(device);
  }
  train::Context context{&group.communicator(), device, prepared.trainer};
  context.sharers = memory_sharers(device, environment, group.communicator());
  context.training = command.verb == "train";
  if (const auto own = prepared.verbs.find(command.verb);
      own != prepared.verbs.end()) {
    return own->second(context);
  }
  if (command.verb == "test") {
    // Only rank 0 need have the file. Its fault is told before data is opened.
    const auto failure = train::broadcast_text(
        context.rank() == 0
            ? checkpoint_failure(prepared.checkpoint, command.recipe)
            : "",
        group.communicator());
    if (!failure.empty()) {
      throw TrainError(kBadInput, failure);
    }
    const auto first = train::broadcast_text(trained, group.communicator());
    if (first != trained) {
      prepared = prepare(command, environment.world_size, first);
      context.trainer = prepared.trainer;
    }
    const auto recipe = build(prepared, context);
    return test_checkpoint(prepared, *recipe, context);
  }
  const auto run =
      open_sitting(command, prepared, sitting, group.communicator());
  train::LoopResult result;
  {
    const auto recipe = build(prepared, context);
    train::LoopOptions options;
    options.environment = environment;
    options.config = prepared.config;
    options.run = &run;
    options.started = sitting.started;
    options.checkpoint_dir =
        checkpoint_folder(prepared, run, environment).string();
    input_or_throw(os::real_files().make_directories(options.checkpoint_dir));
    std::optional<train::Monitor> monitor;
    options.begin = [&]() -> record::EventWriter& {
      const bool anew = begins_anew(prepared, run, environment);
      if (!sitting.events && anew) {
        // Images are looked at when they are asked for.
        recipe->loader().start(0, 0);
        recipe->loader().next();
      }
      begin_events(prepared, run, sitting, group.communicator());
      write_job(command, prepared, run, environment);
      if (environment.rank == 0 && anew) {
        input_or_throw(record::set_checkpoints_aside(options.checkpoint_dir));
      }
      monitor.emplace(
          *sitting.events,
          kResourcePeriod,
          device.is_cuda()
              ? std::optional(collective::gpu_address(device.index()))
              : std::nullopt);
      return *sitting.events;
    };
    result = train::run_loop(*recipe, context, options);
  }
  const int code = result.stopped ? 128 + train::stop_signal() : 0;
  sitting.events->write(
      wire::Exit{
          result.stopped && train::stop_signal() == 0 ? 143 : code,
          0,
          result.stopped ? "stopped after a checkpoint" : ""});
  close_events(command, sitting, group.communicator());
  if (environment.rank == 0) {
    print_result(result, run);
  }
  // A rank that stopped because another was asked to.
  return result.stopped && train::stop_signal() == 0 ? 143 : code;
}

}  // namespace

int run_session(const Command& command) {
  Sitting sitting;
  sitting.started = process_start();
  int code = kFailed;
  std::string reason;
  try {
    return train_recipe(command, sitting);
  } catch (const TrainError& failure) {
    code = failure.exit_code();
    reason = failure.what();
  } catch (const data::DataError& failure) {
    code = kBadInput;
    reason = failure.what();
  } catch (const collective::CollectiveError& failure) {
    code = train::kLost;
    reason = failure.what();
  } catch (const std::exception& failure) {
    const auto* torch = dynamic_cast<const c10::Error*>(&failure);
    reason = torch ? torch->what_without_backtrace() : failure.what();
    if (train::is_out_of_memory(failure)) {
      code = kBadInput;
      reason = fmt::format(
          "this rank ran out of memory ({}); a smaller data.batch_size, "
          "data.image_size or model needs less",
          reason);
    }
  }
  log_error(reason);
  close_failed(command, sitting, code, reason);
  return code;
}

}  // namespace lockstep::recipes
