// Many agents against one hub and coordinator: all join, beat every second,
// send ten events a second each, and then one rank fails. The agents are
// simulated by one thread; the other one is what runs in a head, and its CPU
// time is what an agent costs. One JSON line for each size on stdout.
//
//   agents_bench SECONDS FOLDER SIZE...
//       FOLDER gets agents_cost.svg and agents_verdict.svg
//   agents_bench SECONDS FOLDER real LOCKSTEP
//       one real agent with four ranks that print and write ten events a
//       second: its CPU time and memory

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "lockstep/launch/agent_main.h"
#include "lockstep/launch/coordinator.h"
#include "lockstep/launch/detached.h"
#include "lockstep/launch/hub.h"
#include "lockstep/record/plot.h"
#include "lockstep/wire/channel.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr double kEventsPerSecond = 10;
constexpr Duration kLimit = seconds(120);

double now_seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double thread_cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) +
         1e-9 * static_cast<double>(time.tv_nsec);
}

[[noreturn]] void give_up(const std::string& why) {
  fmt::print(stderr, "agents_bench: {}\n", why);
  std::exit(1);
}

// One node with one rank.
struct SimulatedAgent {
  std::unique_ptr<wire::Channel> channel;
  int rank = 0;
  bool writing = false;
  bool started = false;
  uint64_t reports = 0;
  int64_t step = 0;
  double next_event = 0;
  double next_beat = 0;
};

class Simulator {
 public:
  Simulator(int port, const Key& key, size_t count)
      : port_(port),
        key_(key),
        epoll_(::epoll_create1(EPOLL_CLOEXEC)),
        agents_(count) {
    thread_ = std::thread([this] { run(); });
  }
  ~Simulator() {
    done_ = true;
    thread_.join();
  }
  void fail(int rank) { failing_ = rank; }
  double failed_at() const { return failed_at_; }

 private:
  // A few at a time, as ssh starts them.
  void join_more() {
    constexpr size_t kAtOnce = 64;
    while (joined_ < agents_.size() && joined_ - welcomed_ < kAtOnce) {
      agents_[joined_].rank = static_cast<int>(joined_);
      join(agents_[joined_]);
      ++joined_;
    }
  }

  void join(SimulatedAgent& agent) {
    os::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_port = htons(static_cast<uint16_t>(port_));
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(
            socket.get(), reinterpret_cast<sockaddr*>(&place), sizeof place) !=
        0) {
      give_up("cannot connect");
    }
    agent.channel = wire::Channel::make(
        std::move(socket),
        wire::ChannelRole::kClient,
        key_,
        std::string(kAgentPurpose));
    Join join;
    join.node = agent.rank;
    join.session = std::to_string(agent.rank);
    join.host = fmt::format("node{}", agent.rank);
    join.time = os::real_clock().unix_seconds();
    (void)agent.channel->send(encode(join)).has_value();
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT;
    event.data.u64 = static_cast<uint64_t>(agent.rank);
    agent.writing = true;
    ::epoll_ctl(
        epoll_.get(), EPOLL_CTL_ADD, agent.channel->descriptor(), &event);
    // So that events of all agents are spread over time.
    agent.next_event = agent.next_beat =
        now_seconds() + static_cast<double>(agent.rank % 100) / 1000;
  }

  void run() {
    while (!done_) {
      join_more();
      epoll_event news[256];
      const int count =
          ::epoll_wait(epoll_.get(), news, 256, milliseconds(5).count());
      for (int i = 0; i < count; ++i) {
        hear(agents_[news[i].data.u64]);
      }
      const double now = now_seconds();
      for (size_t i = 0; i < joined_; ++i) {
        speak(agents_[i], now);
      }
    }
  }

  void hear(SimulatedAgent& agent) {
    std::vector<std::string> messages;
    if (agent.channel->descriptor() < 0) {
      return;
    }
    if (const auto result = agent.channel->pump(messages); !result) {
      if (!done_) {
        give_up(result.error().to_string());
      }
      return;
    }
    for (const std::string& bytes : messages) {
      auto message = decode_head_message(bytes);
      if (!message) {
        give_up(message.error().to_string());
      }
      if (std::holds_alternative<Welcome>(*message)) {
        ++welcomed_;
      } else if (std::holds_alternative<StartRequest>(*message)) {
        agent.started = true;
        report(agent, {RankStarted{agent.rank, 1000 + agent.rank}});
      } else if (std::holds_alternative<EndRanks>(*message) && agent.started) {
        agent.started = false;
        RankExited exit;
        exit.rank = agent.rank;
        exit.pid = 1000 + agent.rank;
        exit.status.signal = 15;
        exit.was_stopped = true;
        report(agent, {exit, NodeIdle{}});
      }
    }
    const bool wanted = agent.channel->wants_to_write();
    if (wanted != agent.writing) {
      agent.writing = wanted;
      epoll_event event{};
      event.events = EPOLLIN | (wanted ? uint32_t{EPOLLOUT} : 0);
      event.data.u64 = static_cast<uint64_t>(agent.rank);
      ::epoll_ctl(
          epoll_.get(), EPOLL_CTL_MOD, agent.channel->descriptor(), &event);
    }
  }

  void report(SimulatedAgent& agent, std::vector<Report> reports) {
    Reports batch{0, agent.reports, std::move(reports)};
    agent.reports += batch.reports.size();
    (void)agent.channel->send(encode(batch)).has_value();
  }

  void speak(SimulatedAgent& agent, double now) {
    if (!agent.channel->ready()) {
      return;
    }
    if (now >= agent.next_beat) {
      agent.next_beat += 1;
      (void)agent.channel
          ->send(encode(AgentMessage(Beat{os::real_clock().unix_seconds(), 0})))
          .has_value();
    }
    if (!agent.started || now < agent.next_event) {
      agent.next_event =
          agent.started ? agent.next_event : std::max(agent.next_event, now);
      return;
    }
    agent.next_event += 1 / kEventsPerSecond;
    wire::Iteration done;
    done.step = ++agent.step;
    done.samples = 32;
    done.total = done.compute = 1 / kEventsPerSecond;
    wire::Event event{
        os::real_clock().unix_seconds(),
        agent.rank,
        fmt::format("node{}", agent.rank),
        done};
    std::string line = wire::to_json(event);
    report(agent, {RankEvent{std::move(event), std::move(line)}});
    if (failing_ == agent.rank) {
      failing_ = -1;
      agent.started = false;
      RankExited exit;
      exit.rank = agent.rank;
      exit.pid = 1000 + agent.rank;
      exit.status.code = 1;
      exit.last_lines = {"it failed"};
      failed_at_ = now_seconds();
      report(agent, {exit, NodeIdle{}});
    }
  }

  int port_;
  Key key_;
  os::Descriptor epoll_;
  std::vector<SimulatedAgent> agents_;
  size_t joined_ = 0;    // of them, that dialled
  size_t welcomed_ = 0;  // that were let in
  std::atomic<bool> done_{false};
  std::atomic<int> failing_{-1};
  std::atomic<double> failed_at_{0};
  std::thread thread_;
};

struct Measured {
  size_t agents = 0;
  double join = 0;     // seconds until all had joined
  double cost = 0;     // CPU microseconds an agent and second
  double events = 0;   // a second, all agents
  double verdict = 0;  // seconds
  double end = 0;      // seconds until all ranks were gone
  double memory = 0;   // bytes, the most of this process
};

class Head {
 public:
  Head(const record::RunDirectory& run, size_t count)
      : count_(count), key_(make_key()) {
    auto coordinator =
        Coordinator::open(os::real_files(), os::real_clock(), run, key_);
    HubOptions options;
    options.address = "127.0.0.1";
    options.nodes = count;
    auto hub = Hub::open(options, key_, run, os::real_clock());
    if (!coordinator || !hub) {
      give_up("cannot open a hub or a coordinator");
    }
    coordinator_ = std::move(*coordinator);
    hub_ = std::move(*hub);
    os::Address address;
    address.host = "127.0.0.1";
    must(coordinator_->begin_generation(
        os::real_network(), address, "simulated", static_cast<int>(count)));
  }

  Measured measure(double duration, const os::Path& folder) {
    Measured result;
    result.agents = count_;
    const double begun = now_seconds();
    Simulator simulator(hub_->port(), key_, count_);
    must(hub_->gather(os::Deadline::after(kLimit)));
    result.join = now_seconds() - begun;
    for (size_t node = 0; node < count_; ++node) {
      StartRequest start;
      RankCommand command;
      command.rank = static_cast<int>(node);
      command.argv = {"simulated"};
      command.log = folder / "node" / fmt::format("{}.log", node);
      start.commands.push_back(command);
      must(hub_->start(node, start));
    }
    serve([&] { return started_ == count_; });
    const double warm = now_seconds() + 1;
    serve([&] { return now_seconds() >= warm; });
    const double cpu = thread_cpu_seconds();
    const double time = now_seconds();
    const size_t events = events_;
    serve([&] { return now_seconds() >= time + duration; });
    const double passed = now_seconds() - time;
    result.cost = (thread_cpu_seconds() - cpu) / passed /
                  static_cast<double>(count_) * 1e6;
    result.events = static_cast<double>(events_ - events) / passed;

    simulator.fail(static_cast<int>(count_ / 2));
    serve([&] { return coordinator_->failure().has_value(); });
    const double verdict = now_seconds();
    result.verdict = verdict - simulator.failed_at();
    if (coordinator_->failure()->rank != static_cast<int>(count_ / 2)) {
      give_up("the verdict names another rank");
    }
    hub_->end(15, seconds(2));
    serve([&] { return idle_ == count_; });
    result.end = now_seconds() - verdict;
    rusage use{};
    ::getrusage(RUSAGE_SELF, &use);
    result.memory = 1024.0 * static_cast<double>(use.ru_maxrss);
    return result;
  }

 private:
  static void must(const Result<void>& result) {
    if (!result) {
      give_up(result.error().to_string());
    }
  }

  // As the supervisor does it.
  template <class Holds>
  void serve(const Holds& holds) {
    const auto deadline = os::Deadline::after(kLimit);
    auto next_look = std::chrono::steady_clock::now();
    while (!holds()) {
      if (deadline.passed()) {
        give_up("it takes too long");
      }
      pollfd news{hub_->descriptor(), POLLIN, 0};
      ::poll(&news, 1, 100);
      const auto now = std::chrono::steady_clock::now();
      const bool look = now >= next_look;
      for (const auto& [node, report] : hub_->receive(look, 1 << 20)) {
        started_ += std::holds_alternative<RankStarted>(report) ? 1 : 0;
        events_ += std::holds_alternative<RankEvent>(report) ? 1 : 0;
        idle_ += std::holds_alternative<NodeIdle>(report) ? 1 : 0;
        if (std::holds_alternative<NodeLost>(report)) {
          give_up("a node was lost: " + std::get<NodeLost>(report).reason);
        }
        must(coordinator_->take(report, hub_->host(node)));
      }
      if (look) {
        must(coordinator_->flush());
        next_look = now + milliseconds(100);
      }
    }
  }

  size_t count_;
  Key key_;
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<Hub> hub_;
  size_t started_ = 0;
  size_t events_ = 0;
  size_t idle_ = 0;
};

void draw(
    const os::Path& file,
    const std::vector<Measured>& all,
    const std::string& name,
    const std::string& label,
    double Measured::* value,
    double scale) {
  record::Series series{name, {}, {}};
  for (const Measured& one : all) {
    series.x.push_back(static_cast<double>(one.agents));
    series.y.push_back(one.*value * scale);
  }
  record::PlotOptions options;
  options.title = name;
  options.x_label = "agents";
  options.y_label = label;
  options.from_zero = true;
  std::ofstream(file) << record::plot_svg({series}, options);
}

int bench(double duration, const os::Path& folder, char** first, char** last) {
  std::vector<Measured> all;
  for (char** word = first; word != last; ++word) {
    const size_t count = std::strtoull(*word, nullptr, 10);
    if (count == 0) {
      give_up(fmt::format("'{}' is not a number of agents", *word));
    }
    const os::Path runs = folder / "agents_runs";
    const auto run = record::RunDirectory::create(runs, *word);
    if (!run) {
      give_up(run.error().to_string());
    }
    all.push_back(Head(*run, count).measure(duration, folder));
    std::filesystem::remove_all(runs);
    const Measured& one = all.back();
    fmt::print(
        "{{\"agents\": {}, \"join_seconds\": {:.4f}, "
        "\"cpu_us_per_agent_second\": {:.2f}, \"events_per_second\": {:.1f}, "
        "\"verdict_seconds\": {:.5f}, \"end_seconds\": {:.4f}, "
        "\"peak_bytes\": {:.0f}}}\n",
        one.agents,
        one.join,
        one.cost,
        one.events,
        one.verdict,
        one.end,
        one.memory);
    std::fflush(stdout);
  }
  draw(
      folder / "agents_cost.svg",
      all,
      "Cost of an agent at the head",
      "CPU us a second",
      &Measured::cost,
      1);
  draw(
      folder / "agents_verdict.svg",
      all,
      "From the end of a rank to the verdict",
      "ms",
      &Measured::verdict,
      1000);
  return 0;
}

// Numbers of /proc/PID/stat and status: CPU seconds so far, most memory.
double cpu_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream words(text.substr(std::min(text.rfind(')'), text.size())));
  std::string word;
  for (int field = 0; field < 12; ++field) {
    words >> word;  // ")" state ppid ... stime is the 13th behind it
  }
  double user = 0;
  double system = 0;
  words >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

double peak_of(int pid) {
  std::ifstream file(fmt::format("/proc/{}/status", pid));
  std::string word;
  while (file >> word && word != "VmHWM:") {}
  double kilobytes = 0;
  file >> kilobytes;
  return kilobytes * 1024;
}

int bench_real(
    double duration,
    const os::Path& folder,
    const std::string& program) {
  const os::Path runs = folder / "agents_runs";
  const auto run = record::RunDirectory::create(runs, "real");
  if (!run) {
    give_up(run.error().to_string());
  }
  const Key key = make_key();
  HubOptions options;
  options.address = "127.0.0.1";
  options.nodes = 1;
  auto hub = Hub::open(options, key, *run, os::real_clock());
  if (!hub) {
    give_up(hub.error().to_string());
  }
  AgentSpec spec;
  spec.run_id = run->id();
  spec.key = to_hex(key);
  spec.head_addresses = {fmt::format("127.0.0.1:{}", (*hub)->port())};
  spec.folder = std::filesystem::absolute(runs) / "node";
  std::thread starter([&] {
    const auto line = start_detached(
        {program, "agent"}, to_json(spec), os::Deadline::after(kLimit));
    if (!line || *line != "joined") {
      give_up("the agent did not join");
    }
  });
  const auto gathered = (*hub)->gather(os::Deadline::after(kLimit));
  starter.join();
  if (!gathered) {
    give_up(gathered.error().to_string());
  }
  StartRequest start;
  start.orphan_grace = seconds(1);
  for (int rank = 0; rank < 4; ++rank) {
    RankCommand command;
    command.rank = rank;
    command.events = spec.folder / "ranks" / fmt::format("{}.jsonl", rank);
    command.log = spec.folder / "ranks" / fmt::format("{}.log", rank);
    command.argv = {
        "bash",
        "-c",
        "step=0; while :; do step=$((step + 1)); echo step $step of the run; "
        "echo '{\"v\":1,\"kind\":\"iteration\",\"time\":1,\"rank\":0,"
        "\"step\":1,\"total\":0.1,\"compute\":0.1}' >> " +
            command.events.string() + "; sleep 0.1; done"};
    command.environment = os::environment();
    command.directory = folder;
    start.commands.push_back(command);
  }
  if (const auto started = (*hub)->start(0, start); !started) {
    give_up(started.error().to_string());
  }
  int agent = 0;
  std::ifstream(spec.folder / "agent.pid") >> agent;
  size_t events = 0;
  const auto serve = [&](double until) {
    while (now_seconds() < until) {
      pollfd news{(*hub)->descriptor(), POLLIN, 0};
      ::poll(&news, 1, 100);
      for (const auto& [node, report] : (*hub)->receive(true, 1 << 20)) {
        events += std::holds_alternative<RankEvent>(report) ? 1 : 0;
      }
    }
  };
  serve(now_seconds() + 1);
  const double cpu = cpu_of(agent);
  const double time = now_seconds();
  events = 0;
  serve(time + duration);
  const double passed = now_seconds() - time;
  fmt::print(
      "{{\"cpu_percent\": {:.3f}, \"peak_bytes\": {:.0f}, "
      "\"events_per_second\": {:.1f}}}\n",
      100 * (cpu_of(agent) - cpu) / passed,
      peak_of(agent),
      static_cast<double>(events) / passed);
  (*hub)->end(SIGKILL, Duration(0));
  serve(now_seconds() + 0.2);
  (*hub)->close(os::Deadline::after(seconds(10)));
  std::error_code ignored;  // the agent tidies up at the same time
  std::filesystem::remove_all(runs, ignored);
  return 0;
}

}  // namespace
}  // namespace lockstep::launch

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs(
        "usage: agents_bench SECONDS FOLDER (SIZE... | real LOCKSTEP)\n",
        stderr);
    return 2;
  }
  if (argc == 5 && std::string_view(argv[3]) == "real") {
    return lockstep::launch::bench_real(
        std::strtod(argv[1], nullptr), argv[2], argv[4]);
  }
  return lockstep::launch::bench(
      std::strtod(argv[1], nullptr), argv[2], argv + 3, argv + argc);
}
