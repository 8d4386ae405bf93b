#include "lockstep/launch/coordinator.h"

#include <fmt/format.h>

#include <ctime>

#include "lockstep/base/log.h"
#include "lockstep/record/csv.h"
#include "lockstep/wire/handshake.h"

namespace lockstep::launch {
namespace {

constexpr size_t kMostKept = 16 << 20;

}  // namespace

std::string to_string(const NodeNotice& notice) {
  const auto whole = static_cast<time_t>(notice.at);
  tm parts{};
  char text[32] = "";
  if (notice.at > 0 && ::gmtime_r(&whole, &parts) != nullptr) {
    ::strftime(text, sizeof text, " at %Y-%m-%dT%H:%M:%SZ", &parts);
  }
  return fmt::format(
      "{}{}{}{}",
      notice.kind,
      notice.action.empty() ? "" : ": ",
      notice.action,
      text);
}

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
    const record::RunDirectory& run,
    const Key& key,
    EventMask mask) {
  std::unique_ptr<Coordinator> made(new Coordinator(files, clock, run));
  made->key_ = key;
  made->mask_ = std::move(mask);
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
    const os::Address& address,
    const std::string& program,
    int world_size) {
  // A fresh table: ranks must not meet the addresses of the last generation.
  rendezvous_.reset();
  LOCKSTEP_ASSIGN(
      rendezvous_, wire::RendezvousServer::start(network, address, key_));
  verdict_ = {};
  live_.restart();  // it may go back some steps
  world_size_ = world_size;
  said_exit_.clear();
  wire::Init init;
  init.program = program;
  init.world_size = world_size;
  note(init);
  return flush();
}

os::Address Coordinator::address() const {
  return rendezvous_ == nullptr ? os::Address() : rendezvous_->address();
}

void Coordinator::note(wire::EventBody body, const std::string& host) {
  write({clock_.unix_seconds(), -1, host, std::move(body)});
}

void Coordinator::write(const wire::Event& event) {
  std::string line = wire::to_json(event);
  if (mask_.may_concern(line)) {
    line = wire::to_json(mask_.masked(event));
  }
  events_->add(line + "\n");
}

Result<void> Coordinator::take(const Report& report, const std::string& host) {
  if (std::holds_alternative<RankStarted>(report)) {
    live_.rank_started();
  } else if (const auto* refused = std::get_if<RankRefused>(&report)) {
    live_.rank_ended();
    verdict_.take(*refused, host);
  } else if (const auto* exited = std::get_if<RankExited>(&report)) {
    take_exit(*exited, host);
  } else if (const auto* event = std::get_if<RankEvent>(&report)) {
    std::optional<wire::Event> masked;
    if (mask_.may_concern(event->line)) {
      masked = mask_.masked(event->event);
    }
    const wire::Event& shown = masked ? *masked : event->event;
    // While a disk refuses all, only what may not be dropped is kept.
    if (events_->waiting() < kMostKept || !wire::may_drop(shown.body)) {
      events_->add((masked ? wire::to_json(shown) : event->line) + "\n");
    }
    take_event(shown);
  } else if (const auto* lost = std::get_if<NodeLost>(&report)) {
    verdict_.take(*lost, host);
    note(wire::Node{"lost", lost->reason}, host);
  } else if (const auto* notice = std::get_if<NodeNotice>(&report)) {
    note(wire::Node{"notice", to_string(*notice)}, host);
  }
  constexpr size_t kMostText = 1 << 20;
  return events_->waiting() > kMostText ? flush() : Result<void>();
}

void Coordinator::take_exit(const RankExited& exit, const std::string& host) {
  live_.rank_ended();
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
  write({clock_.unix_seconds(), exit.rank, host, body});
}

void Coordinator::take_event(const wire::Event& event) {
  live_.take(event);
  if (const auto* done = std::get_if<wire::Iteration>(&event.body)) {
    if (timing_->waiting() < kMostKept) {
      timing_->add(record::timing_line(event.rank, *done) + "\n");
    }
  } else if (const auto* exit = std::get_if<wire::Exit>(&event.body)) {
    said_exit_.insert(event.rank);
    verdict_.take(event.rank, *exit);
  }
}

Result<void> Coordinator::flush() {
  // Both, even when the first fails: they may be on a disk with little room.
  const Result<void> events = events_->drain();
  LOCKSTEP_TRY(timing_->drain());
  return events;
}

}  // namespace lockstep::launch
