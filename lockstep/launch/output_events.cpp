#include "lockstep/launch/output_events.h"

#include <cmath>

namespace lockstep::launch {
namespace {

// Takes a named number out, so that what remains are metrics.
std::optional<double> pop(
    std::map<std::string, double>& numbers,
    const std::string& name) {
  const auto node = numbers.extract(name);
  return node.empty() ? std::nullopt : std::optional(node.mapped());
}

int64_t whole(double value) {
  return std::isfinite(value) && std::abs(value) < 9e15
             ? static_cast<int64_t>(value)
             : 0;
}

}  // namespace

Result<OutputEvents> OutputEvents::make(
    const std::string& iteration_pattern,
    const std::string& epoch_pattern) {
  OutputEvents events;
  if (!iteration_pattern.empty()) {
    LOCKSTEP_ASSIGN(events.iterations_, Pattern::compile(iteration_pattern));
  }
  if (!epoch_pattern.empty()) {
    LOCKSTEP_ASSIGN(events.epochs_, Pattern::compile(epoch_pattern));
  }
  return events;
}

std::vector<wire::EventBody> OutputEvents::take(
    std::string_view line,
    double time) {
  std::vector<wire::EventBody> events;
  std::map<std::string, double> numbers;
  if (iterations_ && iterations_->match(line, numbers)) {
    wire::Iteration iteration;
    const auto step = pop(numbers, "step");
    step_ = step ? whole(*step) : step_ + 1;
    if (const auto epoch = pop(numbers, "epoch")) {
      epoch_ = whole(*epoch);
    }
    iteration.step = step_;
    iteration.epoch = epoch_;
    iteration.samples = whole(pop(numbers, "samples").value_or(0));
    const auto seconds = pop(numbers, "seconds");
    iteration.total = seconds               ? *seconds
                      : last_iteration_ > 0 ? time - last_iteration_
                                            : 0;
    iteration.compute = iteration.total;
    last_iteration_ = time;
    events.emplace_back(iteration);
    if (!numbers.empty()) {
      events.emplace_back(wire::Metric{step_, epoch_, numbers});
    }
  }
  if (epochs_ && epochs_->match(line, numbers)) {
    wire::Epoch epoch;
    const auto number = pop(numbers, "epoch");
    epoch.epoch = number ? whole(*number) : epoch_;
    epoch.steps = step_ - epoch_first_step_;
    epoch.samples = whole(pop(numbers, "samples").value_or(0));
    const auto seconds = pop(numbers, "seconds");
    epoch.seconds = seconds           ? *seconds
                    : last_epoch_ > 0 ? time - last_epoch_
                                      : 0;
    last_epoch_ = time;
    epoch_first_step_ = step_;
    epoch_ = epoch.epoch + 1;
    events.emplace_back(epoch);
    if (!numbers.empty()) {
      events.emplace_back(wire::Metric{step_, epoch.epoch, numbers});
    }
  }
  return events;
}

}  // namespace lockstep::launch
