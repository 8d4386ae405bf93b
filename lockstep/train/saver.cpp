#include "lockstep/train/saver.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <signal.h>

#include <regex>

#include "lockstep/os/clock.h"
#include "lockstep/record/event_log.h"
#include "lockstep/train/checkpoint_group.h"

namespace lockstep::train {
namespace {

namespace fs = std::filesystem;

constexpr auto kStale = std::chrono::minutes(1);

double seconds_since(os::Instant start) {
  return to_seconds(os::real_clock().now() - start);
}

// Pinned memory, from which a GPU copies at the speed of the bus.
at::Tensor room_for(const at::Tensor& tensor) {
  const bool pinned = tensor.is_cuda();
  return at::empty(
      tensor.sizes(),
      at::device(at::kCPU).dtype(tensor.scalar_type()).pinned_memory(pinned));
}

// Queues copies of `from`, making room where `to` has none that fits. What is
// on the host already is copied too: training goes on changing it.
void copy_all(const parallel::NamedTensors& from, parallel::NamedTensors& to) {
  to.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) {
    const auto& [name, tensor] = from[i];
    auto& [kept_name, kept] = to[i];
    if (kept_name != name || !kept.defined() ||
        kept.sizes() != tensor.sizes() ||
        kept.scalar_type() != tensor.scalar_type()) {
      kept_name = name;
      kept = room_for(tensor);
    }
    kept.copy_(tensor.detach(), /*non_blocking=*/true);
  }
}

void wait_for_copies(const CheckpointState& state) {
  for (const auto* list : {&state.tensors, &state.extra}) {
    for (const auto& [name, tensor] : *list) {
      if (tensor.is_cuda()) {
        const auto device = tensor.device();
        c10::Event done(device.type());
        done.record(
            c10::impl::VirtualGuardImpl(device.type()).getStream(device));
        done.synchronize();
        return;
      }
    }
  }
}

// What a write that was killed left: "NAME.tmp-PID-N", as large as a
// checkpoint. One that may still be written is left alone: its process is here,
// or, being another host's, it has changed a moment ago.
void remove_leftovers(const fs::path& folder) {
  static const std::regex form(
      R"(\.(?:best|last)\.safetensors\.tmp-([0-9]{1,9})-[0-9]+)");
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(folder, failure)) {
    std::smatch found;
    const std::string name = entry.path().filename().string();
    if (!std::regex_match(name, found, form) ||
        ::kill(std::stoi(found[1]), 0) == 0) {
      continue;
    }
    const auto changed = entry.last_write_time(failure);
    if (!failure && fs::file_time_type::clock::now() - changed > kStale) {
      fs::remove(entry.path(), failure);
    }
  }
}

}  // namespace

Saver::Saver(
    const Options& options,
    collective::Communicator& group,
    record::EventWriter& events)
    : options_(options), group_(group), events_(events) {
  if (group_.rank() == 0) {
    remove_leftovers(options_.folder);
  }
}

Saver::~Saver() {
  if (writing_.valid()) {
    writing_.wait();
  }
}

void Saver::wait() {
  if (writing_.valid()) {
    writing_.get();
  }
}

void Saver::copy(const CheckpointState& state) {
  at::NoGradGuard no_grad;
  copy_.recipe = state.recipe;
  copy_.config = state.config;
  copy_.run = state.run;
  copy_.classes = state.classes;
  copy_.model = state.model;
  copy_all(state.tensors, copy_.tensors);
  copy_all(state.extra, copy_.extra);
  wait_for_copies(state);
}

fs::path Saver::write(
    const CheckpointState& state,
    const Progress& progress,
    const std::string& reason) {
  // `last` is replaced last: whoever resumes from it finds the best it speaks
  // of. A run without validation has no better one than its last.
  if (reason != "best" && progress.best) {
    save_together(last(), state, progress, options_.sharded, group_);
    return last();
  }
  const fs::path best = options_.folder / "best.safetensors";
  save_together(best, state, progress, options_.sharded, group_);
  if (group_.rank() == 0) {
    link_checkpoint(best, last());
  }
  return reason == "best" ? best : last();
}

void Saver::save(
    const CheckpointState& state,
    const Progress& progress,
    const std::string& reason) {
  const auto begun = os::real_clock().now();
  const auto tell = [this, step = progress.step, reason](
                        const fs::path& path, double seconds) {
    if (group_.rank() == 0) {
      events_.write(wire::Checkpoint{step, path.string(), reason, seconds});
    }
  };
  if (!options_.behind) {
    const auto path = write(state, progress, reason);
    tell(path, seconds_since(begun));
    return;
  }
  wait();
  if (group_.rank() != 0) {
    return;  // replicas: rank 0 writes alone, without the others
  }
  copy(state);
  const double seconds = seconds_since(begun);
  writing_ =
      std::async(std::launch::async, [this, progress, reason, tell, seconds] {
        tell(write(copy_, progress, reason), seconds);
      });
}

}  // namespace lockstep::train
