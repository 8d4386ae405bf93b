#include "lockstep/launch/live.h"

#include <algorithm>
#include <cstdlib>

namespace lockstep::launch {
namespace {

constexpr double kRateWindow = 10;  // seconds
// A rate needs two iterations and this time between their ends, else it shows
// how a timer ticks or how warm-up goes.
constexpr double kShortestWindow = 0.5;
constexpr size_t kFewestEntries = 3;

int64_t whole_number(const std::string& text) {
  return std::strtoll(text.c_str(), nullptr, 10);
}

}  // namespace

void LiveTracker::take(const wire::Event& event) {
  if (const auto* done = std::get_if<wire::Iteration>(&event.body)) {
    take_iteration(event, *done);
  } else if (const auto* metric = std::get_if<wire::Metric>(&event.body)) {
    for (const auto& [name, value] : metric->values) {
      state_.metrics[name] = value;
    }
  } else if (const auto* phase = std::get_if<wire::Phase>(&event.body)) {
    state_.phase = phase->name;
  } else if (const auto* init = std::get_if<wire::Init>(&event.body)) {
    if (const auto total = init->facts.find("total_steps");
        total != init->facts.end()) {
      state_.total_steps = whole_number(total->second);
    }
    if (const auto bytes = init->facts.find("checkpoint_bytes");
        bytes != init->facts.end()) {
      state_.checkpoint_bytes =
          std::max(state_.checkpoint_bytes, whole_number(bytes->second));
    }
    if (const auto left = init->facts.find("seconds_left");
        left != init->facts.end()) {
      windows_[event.rank].end =
          event.time + std::strtod(left->second.c_str(), nullptr);
    }
  }
}

void LiveTracker::take_iteration(
    const wire::Event& event,
    const wire::Iteration& done) {
  state_.any_iteration = true;
  state_.step = std::max(state_.step, done.step);
  state_.epoch = std::max(state_.epoch, done.epoch);
  Window& window = windows_[event.rank];
  if (window.end) {
    state_.seconds_left = std::max(0.0, *window.end - event.time);
  }
  auto& entries = window.entries;
  if (!entries.empty()) {
    const double passed = event.time - entries.back().time;
    if (window.step > 0 && done.step > window.step && passed > 0) {
      const double now = passed / static_cast<double>(done.step - window.step);
      constexpr double kWeight = 0.1;
      state_.seconds_per_step =
          state_.seconds_per_step == 0
              ? now
              : (1 - kWeight) * state_.seconds_per_step + kWeight * now;
    }
    window.samples += done.samples;
  }
  window.step = done.step;
  entries.push_back({event.time, done.samples});
  while (entries.size() > kFewestEntries &&
         event.time - entries.front().time > kRateWindow) {
    entries.pop_front();
    window.samples -= entries.front().samples;
  }
  const double seconds = event.time - entries.front().time;
  if (entries.size() >= kFewestEntries && seconds >= kShortestWindow) {
    const double rate = static_cast<double>(window.samples) / seconds;
    state_.samples_per_second =
        std::max(0.0, state_.samples_per_second + rate - window.rate);
    window.rate = rate;
  }
}

}  // namespace lockstep::launch
