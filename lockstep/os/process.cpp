#include "lockstep/os/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>

#include "lockstep/os/descriptor.h"

namespace lockstep::os {
namespace {

// What a child that could not start sends back.
struct Failure {
  enum class Stage : int { kDirectory, kExec };
  Stage stage;
  int error;
};

// Everything the child needs, made before fork: between fork and exec only
// async-signal-safe calls are allowed.
struct Plan {
  std::vector<std::string> programs;  // candidates for exec, in order
  std::vector<std::string> variables;
  std::vector<char*> argv;
  std::vector<char*> envp;
  const char* directory = nullptr;
  Descriptor output;
  Descriptor input;
  bool new_group = false;
  bool die_with_parent = false;
  const std::vector<int>* keep = nullptr;
  std::array<Descriptor, 3> standard;
  bool ignore_interrupts = false;
  pid_t parent = 0;
};

// Above 2, so that a parent without stdio cannot make dup2 hit them.
Descriptor above_stdio(Descriptor descriptor) {
  if (!descriptor || descriptor.get() > 2) {
    return descriptor;
  }
  return Descriptor(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, 3));
}

std::vector<std::string> candidates(const SpawnOptions& options) {
  const std::string& name = options.argv[0];
  if (name.find('/') != std::string::npos) {
    return {name};
  }
  std::string path = "/usr/local/bin:/usr/bin:/bin";
  if (auto found = options.environment.find("PATH");
      found != options.environment.end()) {
    path = found->second;
  } else if (const char* ours = ::getenv("PATH")) {
    path = ours;
  }
  std::vector<std::string> programs;
  for (size_t start = 0; start <= path.size();) {
    size_t end = std::min(path.find(':', start), path.size());
    std::string folder = path.substr(start, end - start);
    programs.push_back((folder.empty() ? "." : folder) + "/" + name);
    start = end + 1;
  }
  return programs;
}

[[noreturn]] void fail(int report, Failure::Stage stage, int error) {
  Failure failure{stage, error};
  ssize_t ignored = ::write(report, &failure, sizeof(failure));
  (void)ignored;
  ::_exit(127);
}

void reset_signals() {
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction action{};
    if (::sigaction(number, nullptr, &action) != 0) {
      continue;
    }
    // What was ignored stays so (nohup), but not SIGPIPE, which we ignore
    // ourselves, nor SIGCHLD, without which a program loses its children.
    if (number == SIGPIPE || number == SIGCHLD ||
        (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN)) {
      action = {};
      action.sa_handler = SIG_DFL;
      ::sigaction(number, &action, nullptr);
    }
  }
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void run_child(const Plan& plan, int report) {
  if (plan.new_group) {
    ::setpgid(0, 0);
  }
  if (plan.die_with_parent) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The parent may have died before the line above.
    if (::getppid() != plan.parent) {
      ::_exit(127);
    }
  }
  if (plan.input) {
    ::dup2(plan.input.get(), 0);
  }
  if (plan.output) {
    ::dup2(plan.output.get(), 1);
    ::dup2(plan.output.get(), 2);
  }
  for (int number = 0; number < 3; ++number) {
    if (plan.standard[number]) {
      ::dup2(plan.standard[number].get(), number);
    }
  }
  // Others' descriptors that were opened without O_CLOEXEC stay behind too.
  ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
  for (int descriptor : *plan.keep) {
    int flags = ::fcntl(descriptor, F_GETFD);
    if (flags >= 0) {
      ::fcntl(descriptor, F_SETFD, flags & ~FD_CLOEXEC);
    }
  }
  if (plan.directory != nullptr && ::chdir(plan.directory) != 0) {
    fail(report, Failure::Stage::kDirectory, errno);
  }
  reset_signals();
  if (plan.ignore_interrupts) {
    ::signal(SIGINT, SIG_IGN);
    ::signal(SIGQUIT, SIG_IGN);
  }
  int error = ENOENT;
  for (const std::string& program : plan.programs) {
    ::execve(program.c_str(), plan.argv.data(), plan.envp.data());
    // As the shell: one that may not be run is told, unless another runs.
    if (errno != ENOENT && errno != ENOTDIR) {
      error = errno;
    }
  }
  fail(report, Failure::Stage::kExec, error);
}

// By number: glibc 2.36 declares the function without C linkage.
Descriptor open_handle(pid_t pid) {
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

class RealProcess : public Process {
 public:
  RealProcess(pid_t pid, bool group)
      : pid_(pid), group_(group), handle_(open_handle(pid)) {}

  int pid() const override { return pid_; }

  Result<std::optional<ExitStatus>> poll() override {
    std::lock_guard lock(mutex_);
    if (status_) {
      return status_;
    }
    int raw = 0;
    pid_t ended = 0;
    do {
      ended = ::waitpid(pid_, &raw, WNOHANG);
    } while (ended < 0 && errno == EINTR);
    if (ended < 0) {
      return os_error(fmt::format("cannot wait for process {}", pid_), errno);
    }
    if (ended == 0) {
      return std::optional<ExitStatus>();
    }
    status_ = ExitStatus{
        .code = WIFEXITED(raw) ? WEXITSTATUS(raw) : 0,
        .signal = WIFSIGNALED(raw) ? WTERMSIG(raw) : 0};
    reaped_ = true;
    return status_;
  }

  Result<ExitStatus> wait(Deadline deadline) override {
    while (true) {
      LOCKSTEP_ASSIGN(std::optional<ExitStatus> status, poll());
      if (status) {
        return *status;
      }
      if (deadline.passed()) {
        return Error(
            ErrorCode::kTimeout, fmt::format("process {} still runs", pid_));
      }
      pause(deadline.left());
    }
  }

  Result<void> signal(int number) override {
    // A group may outlive its leader; a lone pid may be somebody else's now.
    if (!group_ && reaped_) {
      return {};
    }
    if (::kill(group_ ? -pid_ : pid_, number) != 0 && errno != ESRCH) {
      return os_error(
          fmt::format("cannot send signal {} to process {}", number, pid_),
          errno);
    }
    return {};
  }

 private:
  void pause(Duration left) {
    if (!handle_) {  // a kernel without pidfd
      std::this_thread::sleep_for(
          std::min<Duration>(left, std::chrono::milliseconds(5)));
      return;
    }
    pollfd entry{.fd = handle_.get(), .events = POLLIN, .revents = 0};
    auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    timespec timeout{
        .tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
    ::ppoll(&entry, 1, &timeout, nullptr);
  }

  const pid_t pid_;
  const bool group_;
  Descriptor handle_;
  std::mutex mutex_;
  std::optional<ExitStatus> status_;
  std::atomic<bool> reaped_{false};
};

Error start_error(const SpawnOptions& options, const Failure& failure) {
  if (failure.stage == Failure::Stage::kDirectory) {
    return os_error(
        fmt::format("cannot enter {}", options.directory.string()),
        failure.error);
  }
  return os_error(
      fmt::format("cannot run '{}'", options.argv[0]), failure.error);
}

// Waits for exec (which closes the pipe) or for the child's report.
std::optional<Failure> read_report(int descriptor) {
  Failure failure{};
  ssize_t count = 0;
  do {
    count = ::read(descriptor, &failure, sizeof(failure));
  } while (count < 0 && errno == EINTR);
  if (count == sizeof(failure)) {
    return failure;
  }
  return {};
}

Result<Plan> make_plan(const SpawnOptions& options) {
  Plan plan;
  plan.programs = candidates(options);
  for (const std::string& argument : options.argv) {
    plan.argv.push_back(const_cast<char*>(argument.c_str()));
  }
  plan.argv.push_back(nullptr);
  for (const auto& [name, value] : options.environment) {
    plan.variables.push_back(name + "=" + value);
  }
  for (std::string& variable : plan.variables) {
    plan.envp.push_back(variable.data());
  }
  plan.envp.push_back(nullptr);
  if (!options.directory.empty()) {
    plan.directory = options.directory.c_str();
  }
  if (options.output) {
    plan.output = above_stdio(Descriptor(
        ::open(
            options.output->c_str(),
            O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
            0666)));
    if (!plan.output) {
      return os_error(
          fmt::format("cannot write {}", options.output->string()), errno);
    }
  }
  if (options.new_group) {
    plan.input =
        above_stdio(Descriptor(::open("/dev/null", O_RDONLY | O_CLOEXEC)));
  }
  for (size_t number = 0; number < 3; ++number) {
    if (options.standard[number] >= 0) {
      plan.standard[number] =
          Descriptor(::fcntl(options.standard[number], F_DUPFD_CLOEXEC, 3));
      if (!plan.standard[number]) {
        return os_error("cannot pass on a descriptor", errno);
      }
    }
  }
  plan.ignore_interrupts = options.ignore_interrupts;
  plan.new_group = options.new_group;
  plan.die_with_parent = options.die_with_parent;
  plan.keep = &options.keep;
  plan.parent = ::getpid();
  return plan;
}

class RealProcesses : public Processes {
 public:
  Result<std::unique_ptr<Process>> spawn(const SpawnOptions& options) override {
    if (options.argv.empty() || options.argv[0].empty()) {
      return Error(ErrorCode::kInvalidInput, "no program to run");
    }
    LOCKSTEP_ASSIGN(Plan plan, make_plan(options));
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) {
      return os_error("cannot make a pipe", errno);
    }
    Descriptor reader = above_stdio(Descriptor(ends[0]));
    Descriptor writer = above_stdio(Descriptor(ends[1]));

    // No handler of ours may run in the child before exec.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = ::fork();
    int fork_error = errno;
    if (pid == 0) {
      run_child(plan, writer.get());
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) {
      return os_error(
          fmt::format("cannot start '{}'", options.argv[0]), fork_error);
    }
    writer.reset();
    if (auto failure = read_report(reader.get())) {
      while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {}
      return start_error(options, *failure);
    }
    return std::make_unique<RealProcess>(pid, options.new_group);
  }
};

}  // namespace

std::string ExitStatus::to_string() const {
  if (signal != 0) {
    return fmt::format("signal {} ({})", signal, ::strsignal(signal));
  }
  return fmt::format("exit code {}", code);
}

Processes& real_processes() {
  static RealProcesses processes;
  return processes;
}

std::map<std::string, std::string> environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr;
       ++entry) {
    std::string_view text(*entry);
    size_t equals = text.find('=');
    if (equals != std::string_view::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

std::string home_folder() {
  const char* home = std::getenv("HOME");
  return home == nullptr ? "" : home;
}

}  // namespace lockstep::os
