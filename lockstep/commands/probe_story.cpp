#include "lockstep/commands/probe_story.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lockstep/economics/robust.h"

namespace lockstep::commands {
namespace {

using Role = economics::IterationSummary::Role;

std::optional<double> positive(const std::string& text) {
  double value = 0;
  const auto read =
      std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() && value > 0 ? std::optional(value)
                                             : std::nullopt;
}

std::optional<double> positive_fact(
    const wire::Init& init,
    const std::string& name) {
  const auto found = init.facts.find(name);
  return found != init.facts.end() ? positive(found->second) : std::nullopt;
}

}  // namespace

// Rank 0 alone: the times are all by one clock.
void ProbeStory::take_between(const wire::Event& event) {
  if (const auto* phase = std::get_if<wire::Phase>(&event.body)) {
    if (phase->name == "validation") {
      between_.validating_since = event.time;
    } else if (between_.validating_since > 0) {
      // A clock may have been set back meanwhile.
      between_.sums.validation +=
          std::max(0.0, event.time - between_.validating_since);
      between_.validating_since = 0;
      between_.validated = true;
    }
  } else if (const auto* saved = std::get_if<wire::Checkpoint>(&event.body)) {
    between_.sums.checkpoint += saved->seconds;
  } else if (const auto* done = std::get_if<wire::Iteration>(&event.body)) {
    const double gap = event.time - done->total - between_.since;
    // One that was dropped would count as a gap.
    if (between_.validated && between_.since > 0 &&
        done->step == between_.step + 1) {
      Break one = between_.sums;
      one.other = std::max(0.0, gap - one.validation - one.checkpoint);
      breaks_.push_back(whole_break(one));
    }
    between_ = {.step = done->step, .since = event.time};
  }
}

double ProbeStory::closing() const {
  if (exit_time_ == 0 || between_.since == 0) {
    return 0;
  }
  const Break& done = between_.sums;
  return std::max(
      0.0, exit_time_ - between_.since - done.validation - done.checkpoint);
}

std::vector<ProbeStory::Break> ProbeStory::breaks() const {
  std::vector<Break> all = breaks_;
  if (exit_time_ > 0 && between_.validated) {
    all.push_back(whole_break(between_.sums));
  }
  return all;
}

// As if a validation that saw a part of its data had seen all of it.
ProbeStory::Break ProbeStory::whole_break(Break part) const {
  part.validation /= validation_part_;
  return part;
}

void ProbeStory::take(const wire::Event& event) {
  if (event.rank < 0) {
    return;
  }
  first_ = first_ == 0 ? event.time : std::min(first_, event.time);
  last_sign_ = std::max(last_sign_, event.time);
  if (event.rank == 0) {
    take_between(event);
  }
  if (const auto* init = std::get_if<wire::Init>(&event.body)) {
    world_size_ = std::max(init->world_size, 1);
    init_ = std::max(init_, init->seconds);
    const double start = event.time - init->seconds;
    ready_ = ready_ == 0 ? start : std::min(ready_, start);
    if (const auto total = positive_fact(*init, "total_steps")) {
      total_steps_ = total;
    }
    if (const auto steps = positive_fact(*init, "steps_per_epoch")) {
      epoch_steps_ = steps;
    }
    validation_part_ =
        std::min(positive_fact(*init, "validation_part").value_or(1), 1.0);
  } else if (const auto* phase = std::get_if<wire::Phase>(&event.body)) {
    if (event.rank == 0) {
      phase_ = phase->name;
    }
  } else if (const auto* done = std::get_if<wire::Iteration>(&event.body)) {
    if (event.rank == 0 && phase_ != phase_of_steps_) {
      // Parts without iterations (a validation) part nothing.
      num_phases_ += phase_of_steps_.empty() && steps_.empty() ? 0 : 1;
      phase_of_steps_ = phase_;
    }
    Told& told = steps_[done->step];
    Step& step = told.step;
    ++told.ranks;
    step.step = done->step;
    step.seconds = std::max(step.seconds, done->total);
    step.samples += static_cast<double>(done->samples);
    step.time = std::max(step.time, event.time);
    const double own = done->data + done->compute;
    if (own >= step.compute) {
      step.compute = own;
      step.communication = done->communication;
    }
    step.phase = std::max(step.phase, num_phases_);
  } else if (const auto* metric = std::get_if<wire::Metric>(&event.body)) {
    if (const auto found = metric->values.find("total");
        found != metric->values.end() && found->second > 0 && !total_steps_) {
      total_steps_ = found->second;
    }
  } else if (const auto* exit = std::get_if<wire::Exit>(&event.body)) {
    exits_[event.rank] = *exit;
    exit_time_ = event.rank == 0 ? event.time : exit_time_;
    end_time_ = std::max(end_time_, event.time);
  }
}

std::vector<ProbeStory::Step> ProbeStory::steps() const {
  std::vector<Step> whole;
  for (const auto& [number, told] : steps_) {
    if (told.ranks >= world_size_) {
      whole.push_back(told.step);
    }
  }
  return whole;
}

double ProbeStory::first_sign() const {
  return ready_ > 0 ? ready_ : first_;
}

bool ProbeStory::finished() const {
  return static_cast<int>(exits_.size()) >= world_size_ &&
         std::ranges::all_of(exits_, [](const auto& one) {
           return one.second.code == 0 && one.second.signal == 0;
         });
}

ProbeFigures probe_figures(const ProbeStory& story) {
  ProbeFigures figures;
  std::vector<ProbeStory::Step> steps = story.steps();
  figures.seen = steps.size();
  figures.init = story.init();
  figures.total_steps = story.total_steps();
  if (!steps.empty() && figures.total_steps &&
      static_cast<double>(steps.back().step) > *figures.total_steps) {
    figures.total_steps.reset();  // it was an epoch's
  }
  figures.epoch_steps = story.epoch_steps();
  figures.closing = story.closing();
  std::vector<double> others;
  for (const ProbeStory::Break& one : story.breaks()) {
    figures.epoch_ends.push_back(one.validation + one.checkpoint);
    others.push_back(one.other);
  }
  // What is drawn and written at the end of a run, where it was stopped before.
  if (!story.finished() && !others.empty()) {
    figures.closing += economics::median(others);
  }
  // A program that is read by a pattern has no time for its first line.
  if (!steps.empty() && steps.front().seconds == 0) {
    steps.erase(steps.begin());
    figures.past_steps += 1;
  }
  if (steps.empty()) {
    return figures;
  }
  // The program's own last phase, and all that lies before it.
  const auto last =
      std::ranges::find(steps, steps.back().phase, &ProbeStory::Step::phase);
  const auto begin = static_cast<size_t>(last - steps.begin());
  std::vector<double> seconds;
  for (const ProbeStory::Step& step : steps) {
    seconds.push_back(step.seconds);
  }
  const std::span<const double> all = seconds;
  const auto before = economics::sum_up(all.subspan(0, begin));
  figures.iterations = economics::sum_up(all.subspan(begin));
  std::vector<double> samples;
  std::vector<double> compute;
  std::vector<double> communication;
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& part = i < begin ? before : figures.iterations;
    const Role role =
        part ? part->roles[i < begin ? i : i - begin] : Role::kUnused;
    // One that cannot be used is passed over by whoever compares steps.
    figures.seconds.push_back(role == Role::kUnused ? 0 : seconds[i]);
    if (i >= begin && role == Role::kPresent) {
      samples.push_back(steps[i].samples);
      compute.push_back(steps[i].compute);
      communication.push_back(steps[i].communication);
    } else if (role != Role::kUnused) {
      figures.past_steps += 1;
      figures.past_seconds += seconds[i];
    }
  }
  figures.samples = economics::median(samples);
  figures.compute = economics::median(compute);
  figures.communication = economics::median(communication);
  return figures;
}

double num_epoch_ends(const ProbeFigures& figures, double total_steps) {
  if (figures.epoch_ends.empty() || figures.seen == 0) {
    return 0;
  }
  if (figures.epoch_steps) {
    return std::ceil(total_steps / *figures.epoch_steps);
  }
  return total_steps * static_cast<double>(figures.epoch_ends.size()) /
         static_cast<double>(figures.seen);
}

std::optional<economics::Estimate> epoch_end_estimate(
    const ProbeFigures& figures) {
  // Many batches long: one that was seen may be off by a quarter.
  const economics::Caution caution{.spread = std::log(1.25)};
  return economics::estimate(figures.epoch_ends, caution);
}

double past_of(const ProbeFigures& figures, double total_steps) {
  return figures.past_seconds > 0 ? std::min(figures.past_steps, total_steps)
                                  : 0;
}

std::optional<economics::Work> whole_work(
    const ProbeFigures& figures,
    std::optional<double> total) {
  if (!total || !figures.iterations) {
    return std::nullopt;
  }
  economics::Work work;
  work.init = figures.init;
  const double past = past_of(figures, *total);
  if (past > 0) {
    // As it was: nothing about it is in doubt.
    work.phases.push_back(
        {past,
         {.iterations = past,
          .mean = figures.past_seconds / figures.past_steps,
          .spread = 0}});
  }
  work.phases.push_back(
      {*total - past,
       figures.iterations->estimate,
       figures.iterations->drifting ? figures.iterations->drift : 0});
  if (const auto end = epoch_end_estimate(figures)) {
    work.phases.push_back({num_epoch_ends(figures, *total), *end});
  }
  work.end = figures.closing;
  return work;
}

}  // namespace lockstep::commands
