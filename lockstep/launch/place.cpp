#include "lockstep/launch/place.h"

#include <fmt/format.h>

#include <thread>

#include "lockstep/launch/place_tool.h"
#include "lockstep/launch/process_look.h"
#include "lockstep/os/clock.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostAtOnce = 2;  // tools are heavy; ranks may be many
constexpr size_t kMostFrames = 16;
constexpr size_t kMostNative = 8;  // below a Python stack
constexpr double kBusyCores = 0.2;
constexpr double kBusyBytes = 1 << 20;  // a second

}  // namespace

class PlaceProbe {
 public:
  PlaceProbe(int rank, int pid, const PlaceTools& tools)
      : tools_(tools),
        root_(pid),
        pid_(program_below(pid)),
        before_(use_of(pid)),
        since_(os::real_clock().now()) {
    place_.rank = rank;
    python_ = is_python(pid_);
  }

  // True when place() is complete.
  bool advance() {
    switch (stage_) {
      case Stage::kWatch:
        if (os::real_clock().now() - since_ < tools_.watch) {
          return false;
        }
        note_state();
        start_python();
        return false;
      case Stage::kPython:
        if (tool_ != nullptr && !tool_->done()) {
          return false;
        }
        note_python();
        start_native();
        return false;
      case Stage::kNative:
        if (tool_ != nullptr && !tool_->done()) {
          return false;
        }
        note_native();
        stage_ = Stage::kDone;
        return true;
      case Stage::kDone:
        return true;
    }
    return true;
  }

  RankPlace place() { return std::move(place_); }

 private:
  enum class Stage { kWatch, kPython, kNative, kDone };

  void note_state() {
    const double seconds = to_seconds(os::real_clock().now() - since_);
    const ProcessUse now = use_of(root_);
    const double cores = (now.cpu_seconds - before_.cpu_seconds) / seconds;
    const double bytes = (now.bytes - before_.bytes) / seconds;
    place_.state = state_of(pid_);
    if (place_.state.starts_with("stopped")) {
      return;
    }
    if (cores >= kBusyCores) {
      place_.state = fmt::format("running, {:.0f}% of a core", cores * 100);
    } else if (bytes >= kBusyBytes) {
      place_.state = fmt::format(
          "running, reads and writes {} a second",
          format_bytes(Bytes{static_cast<uint64_t>(bytes)}));
    }
  }

  void lacks(const std::string& what) {
    place_.missing += (place_.missing.empty() ? "" : "; ") + what;
  }

  void start_python() {
    stage_ = Stage::kPython;
    if (!python_ || tools_.py_spy.empty()) {
      return;
    }
    const auto program = find_tool(tools_.py_spy, pid_);
    if (!program) {
      lacks("for the Python stack: pip install py-spy");
      return;
    }
    // Not blocking: one that is stopped already would never answer.
    tool_ = std::make_unique<PlaceTool>(
        std::vector<std::string>{
            *program, "dump", "--nonblocking", "--pid", std::to_string(pid_)},
        tools_.patience);
  }

  void note_python() {
    if (tool_ == nullptr) {
      return;
    }
    const auto frames = python_frames(tool_->output(), kMostFrames);
    python_found_ = !frames.empty();
    for (const std::string& frame : frames) {
      place_.stack += frame + "\n";
    }
    if (frames.empty()) {
      lacks(
          tool_->late() ? std::string("py-spy did not answer")
                        : "py-spy gave no stack: " + ptrace_hint());
    }
    tool_.reset();
  }

  void start_native() {
    stage_ = Stage::kNative;
    if (tools_.gdb.empty()) {
      return;
    }
    const auto program = find_tool(tools_.gdb, pid_);
    if (!program) {
      lacks("for a native stack: apt-get install gdb");
      return;
    }
    tool_ = std::make_unique<PlaceTool>(
        std::vector<std::string>{
            *program,
            "-nx",
            "-batch",
            "-iex",
            "set debuginfod enabled off",
            "-iex",
            "set auto-load off",
            "-iex",
            "set width 0",
            "-p",
            std::to_string(pid_),
            "-ex",
            fmt::format(
                "thread apply 1 -q -s bt -frame-arguments none {}",
                kMostFrames)},
        tools_.patience);
  }

  void note_native() {
    if (tool_ == nullptr) {
      return;
    }
    const auto frames =
        gdb_frames(tool_->output(), python_found_ ? kMostNative : kMostFrames);
    for (const std::string& frame : frames) {
      // The interpreter's own frames say nothing more than the Python stack.
      if (python_found_ && frame.starts_with("_PyEval")) {
        break;
      }
      place_.stack += frame + "\n";
    }
    if (frames.empty()) {
      lacks(
          tool_->late() ? std::string("gdb did not answer")
                        : "gdb gave no stack: " + ptrace_hint());
    }
    tool_.reset();
  }

  const PlaceTools& tools_;
  int root_;  // of the rank
  int pid_;   // that is looked at
  ProcessUse before_;
  os::Instant since_;
  bool python_ = false;
  bool python_found_ = false;
  Stage stage_ = Stage::kWatch;
  std::unique_ptr<PlaceTool> tool_;
  RankPlace place_;
};

Places::Places(PlaceTools tools) : tools_(std::move(tools)) {}
Places::~Places() = default;

void Places::inspect(int rank, int pid) {
  queue_.push_back({rank, pid});
}

std::vector<RankPlace> Places::collect() {
  while (!queue_.empty() && probes_.size() < kMostAtOnce) {
    const Wish wish = queue_.front();
    queue_.pop_front();
    probes_.push_back(
        std::make_unique<PlaceProbe>(wish.rank, wish.pid, tools_));
  }
  std::vector<RankPlace> places;
  for (auto& probe : probes_) {
    if (probe->advance()) {
      places.push_back(probe->place());
      probe.reset();
    }
  }
  std::erase(probes_, nullptr);
  return places;
}

void Places::cancel() {
  queue_.clear();
  probes_.clear();
}

RankPlace place_of(int rank, int pid, const PlaceTools& tools) {
  Places places(tools);
  places.inspect(rank, pid);
  while (true) {
    std::vector<RankPlace> done = places.collect();
    if (!done.empty()) {
      return std::move(done.front());
    }
    std::this_thread::sleep_for(milliseconds(10));
  }
}

}  // namespace lockstep::launch
