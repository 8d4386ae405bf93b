#include "lockstep/launch/slurm_mirror.h"

#include <fmt/format.h>

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLook = milliseconds(50);
constexpr Duration kAsk = seconds(1);  // Slurm is asked no oftener

// Nothing that Slurm does can change this end.
bool is_settled(const RunStateFile& written) {
  return written.state == "done" || (written.has_ended() && written.settled);
}

class SlurmMirror : public Mirror {
 public:
  SlurmMirror(const record::RunDirectory& run, RunStateFile state)
      : run_(run),
        state_(std::move(state)),
        job_id_(slurm_job_id(run, state_)) {
    state_.state = "running";  // until we know better
  }

  const RunStateFile& state() const override { return state_; }

  Result<bool> update(os::Deadline /*deadline*/) override {
    os::real_clock().sleep_for(kLook);
    LOCKSTEP_ASSIGN(const auto written, read_run_state(run_));
    if (!written) {
      return Error(
          ErrorCode::kNotFound,
          fmt::format("{} has no state.json", run_.path().string()));
    }
    if (is_settled(*written)) {
      state_ = *written;
      return true;
    }
    if (!next_ask_.passed()) {
      return true;
    }
    next_ask_ = os::Deadline::after(kAsk);
    LOCKSTEP_ASSIGN(const auto told, slurm_state(job_id_));
    take(*written, slurm_view(*written, told));
    return true;
  }

  Result<void> stop(bool now) override { return slurm_stop(job_id_, now); }

  std::string conclusion() const override {
    return unwritten_ ? state_.detail : "";
  }

  Result<void> fetch_all(std::optional<Bytes> /*most*/) override {
    // A job that went without a word has nobody else to write it down.
    return unwritten_ ? write_run_state(run_, state_) : Result<void>();
  }

 private:
  void take(const RunStateFile& written, RunStateFile view) {
    // The head's last word may come a moment after Slurm's.
    constexpr int kPatience = 3;
    const bool guessed = view.has_ended() && view.state != written.state;
    wordless_ = guessed ? wordless_ + 1 : 0;
    if (!view.has_ended() || (guessed && wordless_ < kPatience)) {
      state_ = std::move(view);
      state_.state = "running";  // whoever follows goes on
      return;
    }
    state_ = std::move(view);
    unwritten_ = guessed;
  }

  record::RunDirectory run_;
  RunStateFile state_;
  std::string job_id_;
  os::Deadline next_ask_ = os::Deadline::after(Duration(0));
  int wordless_ = 0;        // how often the job had ended without a last word
  bool unwritten_ = false;  // state_ is ours, not the head's
};

RunStateFile ended_without_a_word(
    RunStateFile written,
    const std::optional<SlurmState>& told) {
  const bool cancelled = told && told->state == "CANCELLED";
  const bool begun = !told || told->restarts <= written.restarts;
  written.state = cancelled ? "stopped" : "lost";
  written.exit_code = cancelled ? 130 : 3;
  written.ended = os::real_clock().unix_seconds();
  written.detail = fmt::format(
      "Slurm ended job {} before its head could {} ({}); see slurm/batch.log "
      "in the run directory",
      written.job_id,
      begun ? "say why" : "begin",
      told ? told->state : "unknown to Slurm now");
  return written;
}

}  // namespace

std::string slurm_job_id(
    const record::RunDirectory& run,
    const RunStateFile& state) {
  if (!state.job_id.empty()) {
    return state.job_id;
  }
  const auto text = os::real_files().read(run.path() / "slurm" / "job_id");
  return text ? text->substr(0, text->find('\n')) : "";
}

std::unique_ptr<Mirror> open_slurm_mirror(
    const record::RunDirectory& run,
    RunStateFile state) {
  return std::make_unique<SlurmMirror>(run, std::move(state));
}

RunStateFile slurm_view(
    RunStateFile written,
    const std::optional<SlurmState>& told) {
  if (is_settled(written)) {
    return written;
  }
  // Of an earlier start: its end, if it has one, is not the run's.
  const bool is_old = told && told->restarts > written.restarts;
  if (!told || told->has_ended()) {
    return written.has_ended() && !is_old
               ? written
               : ended_without_a_word(std::move(written), told);
  }
  // A job that completes may be one that is queued again: Slurm counts that
  // only afterwards. Only one that runs has a head that ended by itself.
  if (written.has_ended() && !is_old && told->state == "RUNNING") {
    return written;
  }
  written.state = told->waits() ? "queued" : "running";
  written.detail = told->waits() ? told->reason : "";
  written.ended = 0;
  written.exit_code = 0;
  return written;
}

RunStateFile with_slurm(const record::RunDirectory& run, RunStateFile state) {
  // Slurm forgets a job some minutes after its end.
  constexpr double kForgotten = 3600;
  if (state.launcher != "slurm" || is_settled(state) ||
      (state.ended > 0 &&
       os::real_clock().unix_seconds() - state.ended > kForgotten)) {
    return state;
  }
  state.job_id = slurm_job_id(run, state);
  const auto told = slurm_state(state.job_id);
  if (!told) {
    state.detail = told.error().to_string();
    return state;
  }
  return slurm_view(std::move(state), *told);
}

}  // namespace lockstep::launch
