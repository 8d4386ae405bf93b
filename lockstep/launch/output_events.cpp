#include "lockstep/launch/output_events.h"

#include <algorithm>
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

std::vector<wire::Event> OutputEvents::take(
    const std::vector<std::string>& lines,
    double time) {
  std::map<std::string, double> ignored;
  std::vector<std::string_view> telling;
  for (const std::string& line : lines) {
    if ((iterations_ && iterations_->match(line, ignored)) ||
        (epochs_ && epochs_->match(line, ignored))) {
      telling.push_back(line);
    }
  }
  const auto count = static_cast<double>(telling.size());
  const double since = last_line_ > 0   ? last_line_
                       : last_look_ > 0 ? last_look_
                                        : time;
  last_look_ = time;
  std::vector<wire::Event> events;
  for (size_t i = 0; i < telling.size(); ++i) {
    const double when =
        since + (time - since) * static_cast<double>(i + 1) / count;
    for (wire::EventBody& body : take_line(telling[i], when)) {
      wire::Event event;
      event.time = when;
      event.body = std::move(body);
      events.push_back(std::move(event));
    }
    last_line_ = when;
  }
  return events;
}

void OutputEvents::restart() {
  last_line_ = last_iteration_ = last_epoch_ = 0;
  step_ = steps_before_ = 0;
  epoch_ = epoch_first_step_ = 0;
  told_step_.reset();
  told_epoch_.reset();
}

std::vector<wire::EventBody> OutputEvents::take_line(
    std::string_view line,
    double time) {
  std::vector<wire::EventBody> events;
  std::map<std::string, double> numbers;
  if (iterations_ && iterations_->match(line, numbers)) {
    wire::Iteration iteration;
    const auto step = pop(numbers, "step");
    const auto epoch = pop(numbers, "epoch");
    // Two lines about one step, as for its loss and its validation.
    const bool again = step && told_step_ == whole(*step) &&
                       (!epoch || !told_epoch_ || told_epoch_ == whole(*epoch));
    if (step && !again) {
      const int64_t told = whole(*step);
      steps_before_ = told > told_step_.value_or(-1) ? steps_before_ : step_;
      told_step_ = told;
      // One that counts from 0 goes on with the next all the same.
      step_ = std::max(steps_before_ + told, step_ + (step_ > 0 ? 1 : 0));
    } else if (!step) {
      ++step_;
    }
    if (epoch) {
      epoch_ = whole(*epoch);
      told_epoch_ = epoch_;
    }
    iteration.step = step_;
    iteration.epoch = epoch_;
    iteration.samples = whole(pop(numbers, "samples").value_or(0));
    const auto seconds = pop(numbers, "seconds");
    if (!again) {
      iteration.total = seconds               ? *seconds
                        : last_iteration_ > 0 ? time - last_iteration_
                                              : 0;
      iteration.compute = iteration.total;
      last_iteration_ = time;
      events.emplace_back(iteration);
    }
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
