#include "lockstep/launch/keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "lockstep/base/log.h"
#include "lockstep/launch/exit_order.h"
#include "lockstep/launch/memory_facts.h"
#include "lockstep/launch/process_tree.h"
#include "lockstep/os/clock.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;

constexpr Duration kSweepGrace = milliseconds(500);
constexpr Duration kAfterGrace = std::chrono::seconds(10);
constexpr Duration kLapseGrace = std::chrono::seconds(2);

// Where we may, ahead of ranks that use all cores: the order of ends on several
// hosts is told by when their keepers saw them. Ranks do not inherit it.
void hurry() {
  if (::getpriority(PRIO_PROCESS, 0) != 0) {
    return;  // somebody chose it
  }
  sched_param wish{};
  wish.sched_priority = ::sched_get_priority_min(SCHED_RR);
  if (::sched_setscheduler(0, SCHED_RR | SCHED_RESET_ON_FORK, &wish) == 0) {
    return;
  }
  wish.sched_priority = 0;
  ::sched_setscheduler(0, SCHED_OTHER | SCHED_RESET_ON_FORK, &wish);
  ::setpriority(PRIO_PROCESS, 0, -10);
}

class Keeper {
 public:
  Keeper(int descriptor, KeeperEars ears) : channel_(descriptor), ears_(ears) {}

  int run() {
    sigset_t handled;
    sigemptyset(&handled);
    for (const int number : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) {
      sigaddset(&handled, number);
    }
    ::sigprocmask(SIG_BLOCK, &handled, nullptr);
    const int signals = ::signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    while (started_ || silent_until_ || !(orphaned_ || quitting_)) {
      pollfd sources[2] = {
          {orphaned_ ? -1 : channel_.descriptor(), POLLIN, 0},
          {signals, POLLIN, 0}};
      if (::poll(sources, 2, wait_milliseconds()) < 0 && errno != EINTR) {
        return 1;
      }
      take_signals(signals);
      if (!orphaned_) {
        take_messages();
      }
      reap();
      act_on_time();
    }
    return 0;
  }

 private:
  struct Rank {
    int rank = 0;
    bool was_stopped = false;
    os::SpawnOptions after;
  };

  int wait_milliseconds() const {
    int64_t least = -1;
    for (const auto* deadline : {&kill_at_, &lease_, &silent_until_}) {
      if (*deadline) {
        const int64_t left =
            std::chrono::ceil<milliseconds>((*deadline)->left()).count();
        least = least < 0 ? left : std::min(least, left);
      }
    }
    return static_cast<int>(least);
  }

  void take_signals(int signals) {
    signalfd_siginfo info{};
    while (::read(signals, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGTERM && ears_ == KeeperEars::kOpen) {
        // Nobody asked through the socket: to the agent the node is lost.
        quitting_ = true;
        end(stop_signal_, orphan_grace_);
      }
    }
  }

  void take_messages() {
    std::vector<json> messages;
    const auto result = channel_.receive(messages);
    if (!messages.empty()) {
      silent_until_.reset();  // it is there again, and hears that we go
    }
    for (const json& message : messages) {
      const std::string type = message.value("type", "");
      if (type == "start") {
        start(decode_start(message));
      } else if (type == "end") {
        end(message.at("signal").get<int>(),
            Duration(message.at("grace").get<int64_t>()));
      } else if (type == "renew") {
        renew(message);
      }
    }
    if (!result) {
      orphaned_ = true;
      lease_.reset();
      silent_until_.reset();
      if (started_) {
        end(stop_signal_, orphan_grace_);
      }
    }
  }

  void renew(const json& message) {
    if (!quitting_) {
      lease_ = os::Deadline::after(Duration(message.at("left")));
      patience_ = Duration(message.at("patience"));
    }
  }

  void start(const StartRequest& request) {
    stop_signal_ = request.stop_signal;
    orphan_grace_ = request.orphan_grace;
    started_ = true;
    kill_at_.reset();
    killing_ = false;
    sweeping_ = false;
    for (const RankCommand& command : request.commands) {
      os::SpawnOptions options;
      options.argv = command.argv;
      options.environment = command.environment;
      options.directory = command.directory;
      options.output = command.log;
      options.new_group = true;
      options.die_with_parent = true;
      auto process = os::real_processes().spawn(options);
      if (!process) {
        say(
            {{"type", "refused"},
             {"rank", command.rank},
             {"reason", process.error().to_string()}});
        continue;
      }
      const int pid = (*process)->pid();
      os::SpawnOptions after = options;
      after.argv = command.after;
      ranks_[pid] = {command.rank, false, std::move(after)};
      exits_.watch(pid);
      say({{"type", "started"}, {"rank", command.rank}, {"pid", pid}});
    }
  }

  void end(int signal, Duration grace) {
    if (!started_) {
      return;
    }
    for (auto& [pid, rank] : ranks_) {
      rank.was_stopped = true;
      if (::kill(-pid, signal) != 0) {
        ::kill(pid, signal);
      }
      ::kill(-pid, SIGCONT);
    }
    const os::Deadline deadline = os::Deadline::after(grace);
    if (!kill_at_ || deadline.left() < kill_at_->left()) {
      kill_at_ = deadline;
    }
  }

  void reap() {
    if (!started_) {
      return;
    }
    ++batch_;
    // Those that are found together ended in this order, within one moment.
    os::Instant ended = os::real_clock().now();
    int status = 0;
    for (const int first : exits_.take()) {
      if (ranks_.contains(first) && ::waitpid(first, &status, WNOHANG) > 0) {
        tell_end(first, status, ++ended);
      }
    }
    int pid = 0;
    while ((pid = ::waitpid(-1, &status, WNOHANG)) > 0) {
      if (ranks_.contains(pid)) {
        tell_end(pid, status, ++ended);
      }
      afters_.erase(pid);  // or it is an orphan of a rank
    }
    if (pid < 0) {  // ECHILD: nothing is left
      started_ = false;
      kill_at_.reset();
      if (!quitting_) {
        say({{"type", "idle"}});
      }
    } else if (ranks_.empty() && !sweeping_) {
      sweeping_ = true;
      signal_descendants(::getpid(), SIGTERM, afters_);
      kill_at_ = os::Deadline::after(kSweepGrace);
    }
  }

  void tell_end(int pid, int status, os::Instant ended) {
    const auto rank = ranks_.find(pid);
    RankExited exit;
    exit.rank = rank->second.rank;
    exit.pid = pid;
    exit.keeper = ::getpid();
    exit.batch = batch_;
    exit.ended = ended;
    exit.was_stopped = rank->second.was_stopped;
    if (WIFSIGNALED(status)) {
      exit.status.signal = WTERMSIG(status);
    } else {
      exit.status.code = WEXITSTATUS(status);
    }
    // A shell hands on the end of the program below it as 128 + signal.
    exit.out_of_memory =
        (exit.status.signal == SIGKILL || exit.status.code == 128 + SIGKILL) &&
        !killing_ && memory_.was_out_of_memory(pid);
    start_after(rank->second.after);
    ranks_.erase(rank);
    say(encode_exit(exit));
  }

  void act_on_time() {
    if (lease_ && lease_->passed()) {
      lease_.reset();
      if (started_) {
        lapse();
      }
    }
    if (silent_until_ && silent_until_->passed() && !started_) {
      silent_until_.reset();
      end_agent();
    }
    if (!kill_at_ || !kill_at_->passed()) {
      return;
    }
    // Again and again: a process may fork while the table is read.
    killing_ = true;
    for (auto& [pid, rank] : ranks_) {
      rank.was_stopped = true;
    }
    if (after_deadline_ && after_deadline_->passed()) {
      afters_.clear();
    }
    signal_descendants(::getpid(), SIGKILL, afters_);
    kill_at_ = os::Deadline::after(milliseconds(20));
  }

  void lapse() {
    say({{"type", "lost"}, {"reason", "its agent hangs or was stopped"}});
    quitting_ = true;
    silent_until_ = os::Deadline::after(patience_);
    end(stop_signal_, std::min(orphan_grace_, kLapseGrace));
  }

  // It holds the other end of the socket, so its pid is its own.
  void end_agent() const {
    ucred peer{};
    socklen_t size = sizeof peer;
    if (::getsockopt(
            channel_.descriptor(), SOL_SOCKET, SO_PEERCRED, &peer, &size) ==
            0 &&
        peer.pid > 1) {
      ::kill(peer.pid, SIGKILL);
    }
  }

  void start_after(os::SpawnOptions& options) {
    if (options.argv.empty()) {
      return;
    }
    if (const auto process = os::real_processes().spawn(options)) {
      afters_.insert((*process)->pid());
      after_deadline_ = os::Deadline::after(kAfterGrace);
    }
  }

  void say(const json& message) {
    if (!orphaned_) {
      (void)channel_.send(message).has_value();
    }
  }

  KeeperChannel channel_;
  KeeperEars ears_;
  MemoryFacts memory_;
  std::map<int, Rank> ranks_;  // by pid
  ExitOrder exits_;
  std::set<int> afters_;  // pids of what runs after ranks
  std::optional<os::Deadline> after_deadline_;
  int stop_signal_ = SIGTERM;
  Duration orphan_grace_{};
  std::optional<os::Deadline> kill_at_;
  std::optional<os::Deadline> lease_;         // none: it was never renewed
  std::optional<os::Deadline> silent_until_;  // then the agent is ended
  Duration patience_{};
  bool started_ = false;   // something may be below us
  bool orphaned_ = false;  // nobody listens any more
  bool quitting_ = false;  // somebody ended the keeper itself
  bool killing_ = false;
  bool sweeping_ = false;
  int batch_ = 0;
};

}  // namespace

int keeper_main(int descriptor, KeeperEars ears) {
  ::setsid();
  become_subreaper();
  hurry();
  ::prctl(PR_SET_NAME, "lockstep-keeper");
  ::signal(SIGPIPE, SIG_DFL);
  ::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  // No rank reads a terminal that is not its own, and no pipe of the caller
  // stays open because of us.
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int standard : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    ::dup2(null, standard);
  }
  return Keeper(descriptor, ears).run();
}

Result<KeeperHandle> start_keeper(const os::Path& program, KeeperEars ears) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return os_error("cannot make a socket pair for the keeper", errno);
  }
  KeeperHandle handle;
  handle.channel = std::make_unique<KeeperChannel>(ends[0]);
  const KeeperChannel child(ends[1]);  // closed here once the child has it
  os::SpawnOptions options;
  options.argv = {program.string(), "keeper", std::to_string(ends[1])};
  if (ears == KeeperEars::kDeaf) {
    options.argv.emplace_back("deaf");
  }
  options.environment = os::environment();
  options.new_group = false;  // it makes a session of its own
  options.keep = {ends[1]};
  LOCKSTEP_ASSIGN(
      handle.process,
      os::real_processes().spawn(options).with_context("starting the keeper"));
  return handle;
}

}  // namespace lockstep::launch
