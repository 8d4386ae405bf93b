#include "lockstep/launch/coordinator.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "lockstep/base/log.h"
#include "lockstep/record/csv.h"
#include "lockstep/wire/handshake.h"

namespace lockstep::launch {
namespace {

constexpr double kRateWindow = 10;  // seconds
constexpr size_t kMostKept = 16 << 20;

int64_t whole_number(const std::string& text) {
  return std::strtoll(text.c_str(), nullptr, 10);
}

}  // namespace

Coordinator::Coordinator(
    os::FileSystem& files,
    const os::Clock& clock,
    const record::RunDirectory& run)
    : files_(files), clock_(clock), run_(run) {}

Coordinator::~Coordinator() {
  rendezvous_.reset();
  (void)files_.remove(key_file_).has_value();
}

Result<std::unique_ptr<Coordinator>> Coordinator::open(
    os::FileSystem& files,
    const os::Clock& clock,
    const record::RunDirectory& run) {
  std::unique_ptr<Coordinator> made(new Coordinator(files, clock, run));
  made->key_ = make_key();
  made->key_file_ = (run.path() / ".key").string();
  LOCKSTEP_TRY(wire::write_key_file(made->key_file_, made->key_));
  const bool fresh = !files.exists(run.timing());
  LOCKSTEP_ASSIGN(
      made->events_, record::PendingFile::open(files, run.events()));
  LOCKSTEP_ASSIGN(
      made->timing_, record::PendingFile::open(files, run.timing()));
  if (fresh) {
    made->timing_->add(std::string(record::kTimingHeader) + "\n");
  }
  return made;
}

Result<void> Coordinator::begin_generation(
    os::Network& network,
    const std::string& head_address,
    const std::string& program,
    int world_size) {
  // A fresh table: ranks must not meet the addresses of the last generation.
  rendezvous_.reset();
  os::Address address;
  address.host = head_address;
  LOCKSTEP_ASSIGN(
      rendezvous_, wire::RendezvousServer::start(network, address, key_));
  verdict_ = {};
  live_ = {};  // a restart may go back some steps
  world_size_ = world_size;
  said_exit_.clear();
  window_.clear();
  window_samples_ = 0;
  last_step_.clear();
  wire::Init init;
  init.program = program;
  init.world_size = world_size;
  note(init);
  return flush();
}

std::string Coordinator::address() const {
  return rendezvous_ == nullptr ? "" : rendezvous_->address().to_string();
}

void Coordinator::note(wire::EventBody body, const std::string& host) {
  events_->add(
      wire::to_json({clock_.unix_seconds(), -1, host, std::move(body)}) + "\n");
}

Result<void> Coordinator::take(const Report& report, const std::string& host) {
  if (std::holds_alternative<RankStarted>(report)) {
    ++live_.ranks_started;
  } else if (const auto* refused = std::get_if<RankRefused>(&report)) {
    ++live_.ranks_ended;
    verdict_.take(*refused, host);
  } else if (const auto* exited = std::get_if<RankExited>(&report)) {
    take_exit(*exited, host);
  } else if (const auto* event = std::get_if<RankEvent>(&report)) {
    // While a disk refuses all, only what may not be dropped is kept.
    if (events_->waiting() < kMostKept || !wire::may_drop(event->event.body)) {
      events_->add(event->line + "\n");
    }
    take_event(event->event);
  } else if (const auto* lost = std::get_if<NodeLost>(&report)) {
    verdict_.take(*lost, host);
    note(wire::Node{"lost", lost->reason}, host);
  }
  constexpr size_t kMostText = 1 << 20;
  return events_->waiting() > kMostText ? flush() : Result<void>();
}

void Coordinator::take_exit(const RankExited& exit, const std::string& host) {
  ++live_.ranks_ended;
  verdict_.take(exit, host);
  if (exit.rank == kSetupRank) {
    return;
  }
  // A rank that wrote its own exit knows more; one that crashed could not.
  if (said_exit_.contains(exit.rank) && exit.status.signal == 0) {
    return;
  }
  wire::Exit body;
  body.code = exit.status.code;
  body.signal = exit.status.signal;
  if (exit.out_of_memory) {
    body.reason = "out of memory";
  } else if (!exit.status.ok()) {
    body.reason = exit.was_stopped ? "stopped" : exit.status.to_string();
  }
  events_->add(
      wire::to_json({clock_.unix_seconds(), exit.rank, host, body}) + "\n");
}

void Coordinator::take_event(const wire::Event& event) {
  if (const auto* done = std::get_if<wire::Iteration>(&event.body)) {
    take_iteration(event, *done);
  } else if (const auto* metric = std::get_if<wire::Metric>(&event.body)) {
    for (const auto& [name, value] : metric->values) {
      live_.metrics[name] = value;
    }
  } else if (const auto* phase = std::get_if<wire::Phase>(&event.body)) {
    live_.phase = phase->name;
  } else if (const auto* init = std::get_if<wire::Init>(&event.body)) {
    if (const auto total = init->facts.find("total_steps");
        total != init->facts.end()) {
      live_.total_steps = whole_number(total->second);
    }
  } else if (const auto* exit = std::get_if<wire::Exit>(&event.body)) {
    said_exit_.insert(event.rank);
    verdict_.take(event.rank, *exit);
  }
}

void Coordinator::take_iteration(
    const wire::Event& event,
    const wire::Iteration& done) {
  if (timing_->waiting() < kMostKept) {
    timing_->add(record::timing_line(event.rank, done) + "\n");
  }
  live_.any_iteration = true;
  live_.step = std::max(live_.step, done.step);
  live_.epoch = std::max(live_.epoch, done.epoch);
  auto& [step, time] = last_step_[event.rank];
  if (step > 0 && done.step > step && event.time > time) {
    const double now =
        (event.time - time) / static_cast<double>(done.step - step);
    constexpr double kWeight = 0.1;
    live_.seconds_per_step =
        live_.seconds_per_step == 0
            ? now
            : (1 - kWeight) * live_.seconds_per_step + kWeight * now;
  }
  step = done.step;
  time = event.time;
  // The first sample only opens the window: its time is where it starts.
  if (!window_.empty()) {
    window_samples_ += done.samples;
  }
  window_.push_back({event.time, done.samples});
  while (window_.size() > 2 &&
         event.time - window_.front().time > kRateWindow) {
    window_.pop_front();
    window_samples_ -= window_.front().samples;
  }
  const double seconds = event.time - window_.front().time;
  if (seconds > 0) {
    live_.samples_per_second = static_cast<double>(window_samples_) / seconds;
  }
}

Result<void> Coordinator::flush() {
  // Both, even when the first fails: they may be on a disk with little room.
  const Result<void> events = events_->drain();
  LOCKSTEP_TRY(timing_->drain());
  return events;
}

}  // namespace lockstep::launch
