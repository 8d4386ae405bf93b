#include "lockstep/launch/place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "lockstep/launch/process_tree.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;

constexpr size_t kMostAtOnce = 2;  // tools are heavy; ranks may be many
constexpr size_t kMostFrames = 16;
constexpr size_t kMostNative = 8;  // below a Python stack
constexpr double kBusyCores = 0.2;
constexpr double kBusyBytes = 1 << 20;  // a second
constexpr size_t kMostOutput = 1 << 20;

std::string read_text(const std::string& path, size_t most = 1 << 16) {
  std::string text;
  const os::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  char block[4096];
  ssize_t size = 0;
  while (file && text.size() < most &&
         (size = ::read(file.get(), block, sizeof block)) > 0) {
    text.append(block, static_cast<size_t>(size));
  }
  return text;
}

std::string proc(int pid, const char* name) {
  return fmt::format("/proc/{}/{}", pid, name);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    lines.push_back(line);
  }
  return lines;
}

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) {
    return "";
  }
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

struct Use {
  double cpu_seconds = 0;
  double bytes = 0;
};

double cpu_seconds(int pid) {
  const std::string stat = read_text(proc(pid, "stat"));
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) {
    return 0;
  }
  std::istringstream fields(stat.substr(name_end + 1));
  std::string skipped;
  for (int field = 3; field < 14; ++field) {
    fields >> skipped;
  }
  double user = 0;
  double system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

Use use_of(int root) {
  Use use;
  std::vector<int> pids = descendants(root);
  pids.push_back(root);
  for (const int pid : pids) {
    use.cpu_seconds += cpu_seconds(pid);
    for (const std::string& line : lines_of(read_text(proc(pid, "io")))) {
      if (line.starts_with("rchar:") || line.starts_with("wchar:")) {
        use.bytes += std::strtod(line.c_str() + 6, nullptr);
      }
    }
  }
  return use;
}

std::string state_of(int pid) {
  return describe_state(
      read_text(proc(pid, "status")),
      read_text(proc(pid, "wchan")),
      read_text(proc(pid, "stack")),
      read_text(proc(pid, "syscall")));
}

// A shell, or a small program that starts the real one, only waits for it.
int program_below(int pid) {
  const long call =
      std::strtol(read_text(proc(pid, "syscall")).c_str(), nullptr, 10);
  if (call != SYS_wait4 && call != SYS_waitid && call != SYS_rt_sigsuspend) {
    return pid;
  }
  int best = pid;
  double most = -1;
  for (const int child : descendants(pid)) {
    if (const double used = cpu_seconds(child); used > most) {
      most = used;
      best = child;
    }
  }
  return best;
}

std::vector<std::string> split_zeros(const std::string& text) {
  std::vector<std::string> parts;
  size_t at = 0;
  while (at < text.size()) {
    const size_t end = std::min(text.find('\0', at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool is_python(int pid) {
  std::error_code failed;
  const std::string program =
      std::filesystem::read_symlink(proc(pid, "exe"), failed)
          .filename()
          .string();
  return program.find("python") != std::string::npos ||
         read_text(proc(pid, "maps"), 1 << 20).find("libpython") !=
             std::string::npos;
}

// In our PATH, in the rank's, or beside its interpreter (a venv).
std::optional<std::string> find_tool(const std::string& name, int pid) {
  if (name.empty()) {
    return {};
  }
  if (name.find('/') != std::string::npos) {
    return ::access(name.c_str(), X_OK) == 0 ? std::optional(name)
                                             : std::nullopt;
  }
  std::string folders;
  if (const char* path = std::getenv("PATH")) {
    folders = path;
  }
  for (const std::string& entry :
       split_zeros(read_text(proc(pid, "environ")))) {
    if (entry.starts_with("PATH=")) {
      folders += ":" + entry.substr(5);
    }
  }
  const auto argv = split_zeros(read_text(proc(pid, "cmdline")));
  if (!argv.empty() && argv[0].find('/') != std::string::npos) {
    folders += ":" + os::Path(argv[0]).parent_path().string();
  }
  std::istringstream stream(folders);
  for (std::string folder; std::getline(stream, folder, ':');) {
    const std::string program = folder + "/" + name;
    if (!folder.empty() && ::access(program.c_str(), X_OK) == 0) {
      return program;
    }
  }
  return {};
}

// A tool whose output goes to memory; killed when its time is over.
class Tool {
 public:
  Tool(std::vector<std::string> argv, Duration patience)
      : output_(::memfd_create("lockstep-place", MFD_CLOEXEC)),
        deadline_(os::Deadline::after(patience)) {
    os::SpawnOptions options;
    options.argv = std::move(argv);
    options.environment = os::environment();
    options.environment["LC_ALL"] = "C";
    options.output = fmt::format("/proc/self/fd/{}", output_.get());
    auto process = os::real_processes().spawn(options);
    if (process) {
      process_ = std::move(*process);
    }
  }
  ~Tool() { kill(); }

  bool done() {
    if (process_ == nullptr) {
      return true;
    }
    const auto status = process_->poll();
    if (!status || *status) {
      process_.reset();
      return true;
    }
    if (deadline_.passed()) {
      kill();
      late_ = true;
    }
    return process_ == nullptr;
  }
  bool late() const { return late_; }

  std::string output() const {
    return read_text(
        fmt::format("/proc/self/fd/{}", output_.get()), kMostOutput);
  }

 private:
  void kill() {
    if (process_ != nullptr) {
      (void)process_->signal(SIGKILL).has_value();
      constexpr auto kReap = milliseconds(200);
      (void)process_->wait(os::Deadline::after(kReap)).has_value();
      process_.reset();
    }
  }

  os::Descriptor output_;
  os::Deadline deadline_;
  std::unique_ptr<os::Process> process_;
  bool late_ = false;
};

std::string ptrace_hint() {
  const std::string scope =
      trimmed(read_text("/proc/sys/kernel/yama/ptrace_scope"));
  return scope.empty() || scope == "0"
             ? "it may not attach to this process"
             : fmt::format(
                   "kernel.yama.ptrace_scope is {}: 'sysctl "
                   "kernel.yama.ptrace_scope=0' lets it attach",
                   scope);
}

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
    const Use now = use_of(root_);
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
    tool_ = std::make_unique<Tool>(
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
    tool_ = std::make_unique<Tool>(
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
  Use before_;
  os::Instant since_;
  bool python_ = false;
  bool python_found_ = false;
  Stage stage_ = Stage::kWatch;
  std::unique_ptr<Tool> tool_;
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
