#include "lockstep/launch/slurm_mirror.h"

#include <fmt/format.h>

#include "lockstep/launch/slurm.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLook = milliseconds(50);
constexpr Duration kAsk = seconds(1);  // Slurm is asked no oftener

bool waits(const SlurmState& state) {
  return state.state == "PENDING" || state.state == "CONFIGURING" ||
         state.state.starts_with("REQUEUE");
}

class SlurmMirror : public Mirror {
 public:
  SlurmMirror(const record::RunDirectory& run, RunStateFile state)
      : run_(run),
        state_(std::move(state)),
        job_id_(slurm_job_id(run, state_)) {}

  const RunStateFile& state() const override { return state_; }

  Result<bool> update(os::Deadline /*deadline*/) override {
    os::real_clock().sleep_for(kLook);
    LOCKSTEP_ASSIGN(const auto read, read_run_state(run_));
    if (!read) {
      return Error(
          ErrorCode::kNotFound,
          fmt::format("{} has no state.json", run_.path().string()));
    }
    const RunStateFile& now = *read;
    if (!now.is_running() && now.exit_code == 0) {
      state_ = now;
      return true;
    }
    if (!next_ask_.passed()) {
      return true;
    }
    next_ask_ = os::Deadline::after(kAsk);
    LOCKSTEP_ASSIGN(const auto told, slurm_state(job_id_));
    if (now.is_running()) {
      take_running(now, told);
    } else if (told && told->is_queued()) {
      gone_ = 0;  // its last processes go, or it is queued again
    } else if (++gone_ >= 2) {
      state_ = now;
    }
    return true;
  }

  Result<void> stop(bool now) override { return slurm_stop(job_id_, now); }

  Result<void> fetch_all() override {
    // A job that went without a word has nobody else to write it down.
    return state_.state == "lost" ? write_run_state(run_, state_)
                                  : Result<void>();
  }

 private:
  // The head's last word may come a moment after Slurm's.
  void take_running(
      const RunStateFile& now,
      const std::optional<SlurmState>& told) {
    state_ = now;
    if (told && told->is_queued()) {
      gone_ = 0;
      return;
    }
    constexpr int kPatience = 3;
    if (++gone_ >= kPatience) {
      state_.state = "lost";
      state_.exit_code = 3;
      state_.ended = os::real_clock().unix_seconds();
      state_.detail = fmt::format(
          "Slurm ended job {} before its head could say why ({}); see {}",
          job_id_,
          told ? told->state : "unknown to Slurm now",
          (run_.path() / "slurm" / "batch.log").string());
    }
  }

  record::RunDirectory run_;
  RunStateFile state_;
  std::string job_id_;
  os::Deadline next_ask_ = os::Deadline::after(Duration(0));
  int gone_ = 0;  // how often Slurm did not know it
};

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

RunStateFile with_slurm(const record::RunDirectory& run, RunStateFile state) {
  if (state.launcher != "slurm" ||
      (!state.is_running() && state.exit_code == 0)) {
    return state;
  }
  state.job_id = slurm_job_id(run, state);
  const auto told = slurm_state(state.job_id);
  if (!told) {
    state.detail = told.error().to_string();
  } else if (*told && waits(**told)) {
    state.state = "queued";
    state.detail = (*told)->reason;
  } else if (!*told && state.is_running()) {
    state.state = "lost";
    state.detail = fmt::format("Slurm does not know job {}", state.job_id);
  }
  return state;
}

}  // namespace lockstep::launch
