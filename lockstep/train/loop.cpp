#include "lockstep/train/loop.h"

#include <c10/core/Event.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/log.h"
#include "lockstep/os/clock.h"
#include "lockstep/parallel/balance.h"
#include "lockstep/record/event_log.h"
#include "lockstep/train/agreement.h"
#include "lockstep/train/checkpoint_group.h"
#include "lockstep/train/error.h"
#include "lockstep/train/limits.h"
#include "lockstep/train/recorder.h"
#include "lockstep/train/saver.h"
#include "lockstep/train/step_trace.h"
#include "lockstep/train/stop_signal.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

// Names the run in its checkpoints: what its launcher calls it, or where it
// writes (torchrun calls every run "none" that nobody named). Rank 0's for all.
std::string agree_on_run_id(
    const LoopOptions& options,
    collective::Communicator& group) {
  std::string name = options.environment.run_id;
  if ((name.empty() || name == "none") && options.run != nullptr) {
    name = fs::absolute(options.run->path()).lexically_normal().string();
  }
  int64_t hash = static_cast<int64_t>(crc32c(name)) << 32;
  hash |= crc32c(name + "again");
  group.broadcast(&hash, 1, collective::DataType::kInt64, 0);
  return fmt::format("{:016x}", static_cast<uint64_t>(hash));
}

double seconds_since(os::Instant start) {
  return to_seconds(os::real_clock().now() - start);
}

// A step that has been put on the device. On a GPU its numbers are read when
// the next one is under way, so that the device never waits for us.
struct Launched {
  int64_t step = 0;
  int64_t epoch = 0;
  int64_t samples = 0;
  double share = 1;    // of the samples, against an equal one
  bool whole = true;   // the global batch is not the short one of an end
  at::Tensor metrics;  // on the host, there when `ready` is
  std::optional<c10::Event> ready;
  collective::Timing timing;
  double data_seconds = 0;
  os::Instant begun;

  void read_metrics(const at::Tensor& values) {
    if (values.is_cpu()) {
      metrics = values.to(at::kDouble).contiguous();
      return;
    }
    metrics = at::empty(
        values.sizes(),
        at::TensorOptions().dtype(at::kDouble).pinned_memory(true));
    metrics.copy_(values.to(at::kDouble), /*non_blocking=*/true);
    ready.emplace(values.device().type());
    ready->record(
        c10::impl::VirtualGuardImpl(values.device().type())
            .getStream(values.device()));
  }
  void wait() const {
    if (ready) {
      ready->synchronize();
    }
  }
};

class Loop {
 public:
  Loop(Recipe& recipe, const Context& context, const LoopOptions& options)
      : recipe_(recipe),
        context_(context),
        options_(options),
        trainer_(context.trainer),
        group_(*context.group),
        names_(recipe.metrics()),
        agreement_(group_, names_.size()),
        trace_(
            leader() && options.run != nullptr ? trainer_.trace_steps : 0,
            context.device,
            options.run != nullptr ? options.run->trace() : "") {
    start_balance();
  }

  LoopResult run();

 private:
  bool leader() const { return group_.rank() == 0; }
  std::string good_checkpoint() {
    saver_->wait();
    return saved_step_ > 0 ? saved_at_.string() : "not there yet";
  }
  CheckpointState state() {
    return {
        recipe_.name(),
        options_.config,
        recipe_.tensors(),
        recipe_.extra(),
        recipe_.placements(),
        run_id_,
        recipe_.classes(),
        recipe_.model()};
  }
  void start_balance();
  // Lets shares follow what the ranks were measured at.
  void follow_speeds(const Launched& step);
  void resume();
  // Where to go on from; none: nowhere.
  std::optional<fs::path> resume_from();
  void take_best_along(const fs::path& path);
  void announce();
  void enter_phase(Recorder& recorder);
  // False when training is over.
  bool run_epoch(Recorder& recorder);
  void run_step(
      Recorder& recorder,
      StepInput& input,
      double data_seconds,
      os::Instant begun);
  // Agrees on a step with the other ranks, and writes what it gave.
  void settle(Recorder& recorder, Launched step);
  // Settles the step whose numbers are still on the device.
  void drain(Recorder& recorder);
  void report(Recorder& recorder, const Launched& step);
  void finish_trace(Recorder& recorder);
  void draw(Recorder& recorder);
  void validate(Recorder& recorder);
  void tell_no_validation();
  void save(const std::string& reason);
  void check_weights();
  bool reached_limit() const;
  // Whether validation has not become better for too long.
  bool gave_up() const;

  Recipe& recipe_;
  const Context& context_;
  const LoopOptions& options_;
  const TrainerConfig& trainer_;
  collective::Communicator& group_;
  std::vector<std::string> names_;
  Agreement agreement_;
  StepTrace trace_;
  std::optional<parallel::Balance> balance_;  // where shares follow speeds
  bool reshare_ = false;  // the loader must begin anew with other shares
  int64_t steps_per_epoch_ = 0;
  int64_t total_steps_ = 0;
  Progress progress_;
  LoopResult result_;
  os::Instant begun_ = os::real_clock().now();
  double seconds_before_ = 0;  // of earlier sittings
  int64_t measured_samples_ = 0;
  double measured_seconds_ = 0;
  int64_t steps_here_ = 0;
  std::optional<Launched> unread_;
  os::Instant settled_at_ = os::real_clock().now();
  int64_t step_epoch_ = 0;  // of the last step
  int64_t saved_step_ = -1;
  fs::path saved_at_;                      // that step
  std::string run_id_;                     // in its checkpoints
  record::EventWriter* events_ = nullptr;  // once the run has begun
  std::optional<Saver> saver_;
  std::string phase_;
  int64_t validated_step_ = -1;
  bool told_no_validation_ = false;
  int64_t drawn_step_ = -1;
};

void Loop::start_balance() {
  if (trainer_.balance != "auto" || group_.size() == 1) {
    return;
  }
  if (context_.device.is_cuda()) {
    throw TrainError(
        kBadInput,
        "trainer.balance=auto: on a GPU ranks do not see how long they waited "
        "for each other; accepted there: none");
  }
  balance_.emplace(
      recipe_.loader().batch_size() * group_.size(),
      static_cast<size_t>(group_.size()));
}

void Loop::follow_speeds(const Launched& step) {
  if (!balance_ || !step.whole || !balance_->observe(agreement_.seconds())) {
    return;
  }
  reshare_ = true;
  if (leader()) {
    log_info(
        fmt::format(
            "step {}: shares of the batch by rank: {}",
            step.step,
            fmt::join(balance_->shares(), " ")));
  }
}

std::optional<fs::path> Loop::resume_from() {
  const std::string& from = trainer_.resume;
  const fs::path last = Saver::last_in(options_.checkpoint_dir);
  int64_t there = 0;
  // A restarted generation goes on by itself, from what this run has written: a
  // folder that was given may have another one's.
  if (options_.environment.generation > 0 && from != "auto") {
    there = leader() && fs::exists(last) && is_checkpoint_of(last, run_id_);
  } else if (from == "auto") {
    there = leader() && fs::exists(last);
  }
  group_.broadcast(&there, 1, collective::DataType::kInt64, 0);
  if (there != 0) {
    return last;
  }
  if (from == "auto" && leader()) {
    log_info(fmt::format("nothing to resume at {}: step 1", last.string()));
  }
  return from == "auto" || from == "none" ? std::nullopt
                                          : std::optional<fs::path>(from);
}

// A run that goes on in another folder has its best so far there, too: the old
// folder may be gone when it ends without a better one.
void Loop::take_best_along(const fs::path& path) {
  const fs::path file = path.has_filename() ? path : path.parent_path();
  const fs::path from = file.parent_path() / "best.safetensors";
  const fs::path to = fs::path(options_.checkpoint_dir) / "best.safetensors";
  std::error_code absent;
  if (!leader() || !progress_.best || !fs::exists(from, absent) ||
      fs::exists(to, absent)) {
    return;
  }
  try {
    link_checkpoint(from, to);
  } catch (const TrainError& failure) {
    log_warning(failure.what());
  }
}

void Loop::resume() {
  run_id_ = agree_on_run_id(options_, group_);
  const auto whole = state();
  Saver::Options saving;
  saving.folder = options_.checkpoint_dir;
  saving.sharded = choose_sharded(
      trainer_.checkpoint_format, options_.checkpoint_dir, whole, group_);
  saving.behind = context_.device.is_cuda() && whole.placements.empty();
  const auto path = resume_from();
  if (path) {
    progress_ = restore_together(*path, whole, group_);
    saved_at_ = *path;
    if (leader()) {
      log_info(
          fmt::format(
              "resumed from {} at step {}", path->string(), progress_.step));
    }
  } else {
    share_state(whole, progress_, group_);
  }
  events_ = &options_.begin();
  saver_.emplace(saving, group_, *events_);
  if (path) {
    take_best_along(*path);
  }
  saved_step_ = progress_.step;
  step_epoch_ = progress_.epoch;
  seconds_before_ = progress_.seconds;
  const auto& loader = recipe_.loader();
  const EpochSize epoch = {
      loader.batches(), loader.batch_size() * group_.size()};
  steps_per_epoch_ = steps_per_epoch(trainer_, epoch);
  total_steps_ = total_steps(trainer_, epoch, progress_);
}

void Loop::announce() {
  wire::Init init;
  init.program = "lockstep-train " + recipe_.name();
  init.world_size = group_.size();
  init.seconds = os::real_clock().unix_seconds() - options_.started;
  init.facts = {
      {"device", context_.device.str()},
      {"precision", trainer_.precision},
      {"strategy",
       trainer_.strategy != "auto" ? trainer_.strategy
       : group_.size() > 1         ? "ddp"
                                   : "single"},
      {"collective", group_.name()},
      {"launcher", options_.environment.launcher},
      {"batches_per_epoch", std::to_string(recipe_.loader().batches())},
      {"accumulate", std::to_string(trainer_.accumulate)},
      {"balance", balance_ ? "auto" : "none"},
      {"steps_per_epoch", std::to_string(steps_per_epoch_)},
      {"total_steps", std::to_string(total_steps_)},
      {"threads", std::to_string(at::get_num_threads())},
      {"checkpoint_bytes", std::to_string(whole_bytes(state()))},
  };
  if (trainer_.max_seconds > 0) {
    init.facts["seconds_left"] = fmt::format(
        "{:.1f}", std::max(0., trainer_.max_seconds - seconds_before_));
  }
  for (auto& [key, value] : recipe_.facts()) {
    init.facts[key] = value;
  }
  events_->write(init);
  phase_ = recipe_.phase(progress_.step + 1);
  events_->write(wire::Phase{phase_});
}

// Tells when the next step is another kind of work.
void Loop::enter_phase(Recorder& recorder) {
  const auto next = recipe_.phase(progress_.step + 1);
  if (next != phase_) {
    drain(recorder);  // the steps before belong to the phase before
    phase_ = next;
    events_->write(wire::Phase{phase_});
  }
}

bool Loop::reached_limit() const {
  return total_steps_ > 0 && progress_.step >= total_steps_;
}

bool Loop::gave_up() const {
  return trainer_.early_stop > 0 &&
         progress_.since_best >= trainer_.early_stop &&
         progress_.epoch >= trainer_.min_epochs;
}

LoopResult Loop::run() {
  resume();
  Recorder recorder(options_.run, leader(), progress_.step);
  announce();
  const bool out_of_time = is_out_of_time(trainer_, progress_);
  if (reached_limit()) {
    recorder.line(
        fmt::format(
            "nothing to do: the checkpoint is at step {} of {}",
            progress_.step,
            total_steps_),
        true);
  } else if (out_of_time) {
    recorder.line(
        fmt::format(
            "nothing to do: the checkpoint has {:.0f} s, "
            "trainer.max_seconds={}",
            progress_.seconds,
            trainer_.max_seconds),
        true);
  }
  begun_ = os::real_clock().now();
  while (!out_of_time && !reached_limit() && !gave_up() &&
         run_epoch(recorder)) {}
  finish_trace(recorder);
  if (gave_up()) {
    recorder.line(
        fmt::format(
            "stopped early: {} validations without a better {} than {:.4g}",
            progress_.since_best,
            recipe_.best().metric,
            progress_.best.value_or(0)),
        true);
  }
  if (!result_.stopped && steps_here_ > 0) {
    draw(recorder);
    validate(recorder);
  }
  if (saved_step_ != progress_.step ||
      (progress_.step > 0 && saved_at_ != saver_->last())) {
    save(result_.stopped ? "signal" : "final");
  }
  saver_->wait();
  recorder.flush();
  result_.steps = progress_.step;
  result_.epochs = progress_.epoch;
  result_.best = progress_.best;
  result_.best_metric = recipe_.best().metric;
  result_.seconds = progress_.seconds;
  return result_;
}

bool Loop::run_epoch(Recorder& recorder) {
  auto& loader = recipe_.loader();
  const int64_t per_step = trainer_.accumulate;
  const int64_t batch_samples = loader.batch_size() * group_.size();
  const auto begun = os::real_clock().now();
  int64_t steps = 0;
  int64_t samples = 0;  // of this rank
  bool ended = false;   // by a limit or a signal
  loader.start(progress_.epoch, progress_.samples_in_epoch / batch_samples);
  while (true) {
    const auto step_begun = os::real_clock().now();
    if (reshare_) {
      reshare_ = false;
      loader.share(balance_->shares());
      loader.start(progress_.epoch, progress_.samples_in_epoch / batch_samples);
    }
    StepInput input;
    for (int64_t i = 0; i < per_step; ++i) {
      auto batch = loader.next();
      if (!batch) {
        break;
      }
      input.samples += batch->size;
      input.all_samples += batch->all;
      input.batches.push_back(std::move(*batch));
    }
    if (input.batches.empty()) {
      break;
    }
    const double data_seconds = seconds_since(step_begun);
    enter_phase(recorder);
    run_step(recorder, input, data_seconds, step_begun);
    ++steps;
    samples += input.samples;
    const int64_t every = recipe_.draw_every();
    if (every > 0 && progress_.step % every == 0) {
      draw(recorder);
    }
    const bool whole_epoch =
        progress_.samples_in_epoch >= loader.batches() * batch_samples;
    if (whole_epoch || reached_limit()) {
      drain(recorder);
    }
    // Asked to stop at the very last step, a run simply ends.
    result_.stopped = agreement_.stop() && !reached_limit();
    const bool out_of_time =
        agreement_.out_of_time() && progress_.epoch >= trainer_.min_epochs;
    ended = result_.stopped || out_of_time || reached_limit();
    if (!whole_epoch && !ended && trainer_.checkpoint_every > 0 &&
        progress_.step % trainer_.checkpoint_every == 0) {
      drain(recorder);
      save("periodic");
    }
    if (ended) {
      drain(recorder);
    } else if (trainer_.rehearse > 0 && steps_here_ == trainer_.rehearse) {
      drain(recorder);
      draw(recorder);
      validate(recorder);
      if (saved_step_ != progress_.step) {
        save("rehearsal");
      }
    }
    // A stop leaves the epoch's end, with its validation, to the next sitting.
    if (ended && (!whole_epoch || result_.stopped)) {
      return false;
    }
    if (whole_epoch) {
      break;
    }
  }
  events_->write(
      wire::Epoch{progress_.epoch, steps, samples, seconds_since(begun)});
  ++progress_.epoch;
  progress_.samples_in_epoch = 0;
  validate(recorder);
  if (saved_step_ != progress_.step &&
      (trainer_.checkpoint_every == 0 ||
       progress_.step % trainer_.checkpoint_every == 0)) {
    save("periodic");
  }
  // After what was learned is safe: too many of them end the run.
  agree_on_images(recipe_.datasets(), group_);
  return !ended;
}

void Loop::run_step(
    Recorder& recorder,
    StepInput& input,
    double data_seconds,
    os::Instant begun) {
  input.step = progress_.step + 1;
  input.epoch = progress_.epoch;
  input.total_steps = total_steps_;
  seed_step(trainer_.seed, group_.rank(), input.step);
  if (trace_.before_step()) {
    recorder.line("traced: " + options_.run->trace().string(), true);
  }
  auto output = recipe_.step(input);
  Launched step;
  step.step = input.step;
  step.epoch = progress_.epoch;
  step.samples = input.samples;
  const auto batches = static_cast<int64_t>(input.batches.size());
  const int64_t batch_samples = recipe_.loader().batch_size() * group_.size();
  step.share = static_cast<double>(input.samples * group_.size()) /
               static_cast<double>(input.all_samples);
  step.whole = batches == trainer_.accumulate &&
               input.all_samples == batches * batch_samples;
  step.timing = output.timing;
  step.data_seconds = data_seconds;
  step.begun = begun;
  step.read_metrics(output.metrics);

  ++progress_.step;
  step_epoch_ = progress_.epoch;
  // Counted in whole batches, so that the place in the epoch stays exact when
  // its last batch is short.
  progress_.samples_in_epoch += batches * batch_samples;
  progress_.seconds = seconds_before_ + seconds_since(begun_);
  // A step that waited for other ranks has waited for its device: nothing is
  // won by reading its metrics later, and its time would be told of the next.
  const bool waited = step.timing.wait + step.timing.busy > 0;
  if (!step.ready || waited) {
    drain(recorder);
    settle(recorder, std::move(step));
    return;
  }
  std::optional<Launched> before = std::move(unread_);
  unread_ = std::move(step);
  if (before) {
    settle(recorder, std::move(*before));
  }
}

void Loop::drain(Recorder& recorder) {
  if (unread_) {
    Launched step = std::move(*unread_);
    unread_.reset();
    settle(recorder, std::move(step));
  }
}

void Loop::settle(Recorder& recorder, Launched step) {
  step.wait();
  const double* values = step.metrics.data_ptr<double>();
  Agreement::Own own;
  own.metrics = values;
  own.samples = step.samples;
  own.seconds = seconds_since(std::max(step.begun, settled_at_)) -
                step.timing.wait - step.timing.busy;
  own.stop = stop_requested();
  own.out_of_time =
      leader() && trainer_.max_seconds > 0 &&
      seconds_before_ + seconds_since(begun_) >= trainer_.max_seconds;
  const auto agreed = agreement_.reduce(own);
  ++steps_here_;
  wire::Metric metric{step.step, step.epoch, {}};
  for (size_t i = 0; i < names_.size(); ++i) {
    metric.values[names_[i]] = values[i] / step.share;
  }
  events_->write(std::move(metric));
  wire::Iteration iteration;
  iteration.step = step.step;
  iteration.epoch = step.epoch;
  iteration.samples = step.samples;
  // Since the step before ended, when this one began before that.
  iteration.total = seconds_since(std::max(step.begun, settled_at_));
  settled_at_ = os::real_clock().now();
  iteration.data = std::min(step.data_seconds, iteration.total);
  iteration.wait = step.timing.wait + agreed.wait;
  iteration.communication = step.timing.busy + agreed.busy;
  iteration.compute = std::max(
      0.,
      iteration.total - iteration.data - iteration.wait -
          iteration.communication);
  if (steps_here_ > 1) {
    measured_samples_ += agreement_.samples();
    measured_seconds_ += iteration.total;
  }
  events_->write(iteration);

  if (const int rank = agreement_.first_nan_rank(); rank >= 0) {
    std::string which;
    for (size_t i = 0; i < names_.size(); ++i) {
      if (rank == group_.rank() && !std::isfinite(values[i])) {
        which += " " + names_[i];
      }
    }
    throw TrainError(
        kFailed,
        fmt::format(
            "step {}: rank {} has a loss that is not a number{}; training "
            "stopped, the last good checkpoint is {}; try a smaller optim.lr "
            "or optim.clip=1",
            step.step,
            rank,
            which.empty() ? "" : " (" + which.substr(1) + ")",
            good_checkpoint()));
  }
  report(recorder, step);
  follow_speeds(step);
}

void Loop::report(Recorder& recorder, const Launched& step) {
  for (size_t i = 0; i < names_.size(); ++i) {
    result_.metrics[names_[i]] = agreement_.mean(i);
  }
  result_.samples_per_second =
      measured_seconds_ > 0
          ? static_cast<double>(measured_samples_) / measured_seconds_
          : 0;
  // Rows depend on the step alone, so that a resumed run writes the same.
  const bool logged = step.step % trainer_.log_every == 0 || step.step == 1 ||
                      (total_steps_ > 0 && step.step >= total_steps_);
  if (!leader() || !(logged || steps_here_ == 1)) {
    return;
  }
  std::map<std::string, double> row;
  std::string text = fmt::format("epoch {} step {}", step.epoch, step.step);
  if (total_steps_ > 0) {
    text += fmt::format("/{}", total_steps_);
  }
  for (const auto& name : names_) {
    row[name] = result_.metrics[name];
    text += fmt::format("  {} {:.4g}", name, row[name]);
  }
  if (result_.samples_per_second > 0) {
    row["samples_per_second"] = result_.samples_per_second;
    text += fmt::format("  {:.1f} samples/s", result_.samples_per_second);
  }
  if (logged) {
    recorder.metrics(step.step, step.epoch, row);
  }
  recorder.line(text);
}

void Loop::finish_trace(Recorder& recorder) {
  if (trace_.finish()) {
    recorder.line("traced: " + options_.run->trace().string(), true);
  } else if (trace_.is_missing()) {
    log_warning(
        fmt::format(
            "trainer.trace_steps={}: nothing was traced, since the run ended "
            "after {} steps and the first {} are left out",
            trainer_.trace_steps,
            steps_here_,
            StepTrace::kSkipped));
  }
}

void Loop::draw(Recorder& recorder) {
  drain(recorder);
  if (!leader() || recipe_.draw_every() == 0 || drawn_step_ == progress_.step) {
    return;
  }
  drawn_step_ = progress_.step;
  for (const auto& picture : recipe_.draw()) {
    recorder.picture(picture, progress_.step);
  }
}

void Loop::tell_no_validation() {
  if (trainer_.early_stop > 0 && !told_no_validation_ && leader()) {
    log_warning(
        fmt::format(
            "trainer.early_stop={} does nothing: there are no held-out samples "
            "to validate on",
            trainer_.early_stop));
  }
  told_no_validation_ = true;
}

void Loop::validate(Recorder& recorder) {
  if (validated_step_ == progress_.step) {
    return;
  }
  validated_step_ = progress_.step;
  events_->write(wire::Phase{"validation"});
  const auto values = recipe_.validate();
  events_->write(wire::Phase{phase_});
  if (values.empty()) {
    tell_no_validation();
    return;
  }
  std::string text = fmt::format("validation at step {}:", progress_.step);
  for (const auto& [name, value] : values) {
    result_.metrics[name] = value;
    text += fmt::format("  {} {:.4g}", name, value);
  }
  recorder.metrics(progress_.step, step_epoch_, values);
  recorder.flush();
  recorder.line(text, true);
  if (leader()) {
    events_->write(wire::Metric{progress_.step, step_epoch_, values});
  }
  const auto best = recipe_.best();
  const auto found = values.find(best.metric);
  if (found == values.end() || !std::isfinite(found->second)) {
    return;
  }
  const double value = found->second;
  if (!progress_.best ||
      (best.smaller ? value < *progress_.best : value > *progress_.best)) {
    progress_.best = value;
    progress_.since_best = 0;
    save("best");
  } else {
    ++progress_.since_best;
  }
}

// Every rank looks at its replica or its parts; a good file is never replaced
// by a bad one. With parts, all must know that one of them is bad.
void Loop::check_weights() {
  std::string wrong;
  for (const auto& [name, tensor] : recipe_.tensors()) {
    if (tensor.is_floating_point() &&
        !at::isfinite(tensor).all().item<bool>()) {
      wrong = name;
      break;
    }
  }
  int64_t bad = wrong.empty() ? 0 : 1;
  if (!recipe_.placements().empty()) {
    group_.all_reduce(
        &bad, 1, collective::DataType::kInt64, collective::ReduceOp::kMax);
  }
  if (bad != 0) {
    throw TrainError(
        kFailed,
        fmt::format(
            "step {}: rank {} has a weight that is not a number ({}); "
            "training stopped, the last good checkpoint is {}; try a "
            "smaller optim.lr or optim.clip=1",
            progress_.step,
            group_.rank(),
            wrong.empty() ? "in another rank's part" : wrong,
            good_checkpoint()));
  }
}

void Loop::save(const std::string& reason) {
  check_weights();
  saver_->save(state(), progress_, reason);
  saved_step_ = progress_.step;
  saved_at_ = saver_->last();
}

}  // namespace

LoopResult
run_loop(Recipe& recipe, const Context& context, const LoopOptions& options) {
  try {
    return Loop(recipe, context, options).run();
  } catch (const collective::CollectiveError& failure) {
    throw TrainError(kLost, failure.what());
  }
}

}  // namespace lockstep::train
