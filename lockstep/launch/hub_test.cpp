#include "lockstep/launch/hub.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <thread>

#include "lockstep/launch/agent_fake.h"
#include "lockstep/launch/agent_loop.h"
#include "lockstep/record/temporary_folder_test.h"
#include "lockstep/wire/channel.h"

namespace lockstep::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

os::Descriptor connect_to(int port) {
  os::Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_port = htons(static_cast<uint16_t>(port));
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(
      ::connect(
          socket.get(), reinterpret_cast<sockaddr*>(&place), sizeof place),
      0);
  return socket;
}

// One in the middle of agents and hub, who may cut all connections, or stop
// carrying bytes. A thread of its own.
class Middle {
 public:
  explicit Middle(int port) : target_(port) {
    listener_ = os::Descriptor(
        ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_in place{};
    place.sin_family = AF_INET;
    place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof place;
    auto* generic = reinterpret_cast<sockaddr*>(&place);
    EXPECT_EQ(::bind(listener_.get(), generic, size), 0);
    EXPECT_EQ(::listen(listener_.get(), 64), 0);
    EXPECT_EQ(::getsockname(listener_.get(), generic, &size), 0);
    port_ = ntohs(place.sin_port);
    thread_ = std::thread([this] { carry(); });
  }
  ~Middle() {
    done_ = true;
    thread_.join();
  }
  int port() const { return port_; }
  void cut() { cut_ = true; }
  void freeze(bool on) { frozen_ = on; }
  std::string recorded() {
    const std::lock_guard lock(mutex_);
    return recorded_;
  }

 private:
  struct Link {
    os::Descriptor from, to;
  };
  void carry() {
    while (!done_) {
      std::vector<pollfd> sources = {{listener_.get(), POLLIN, 0}};
      for (const Link& link : links_) {
        sources.push_back({frozen_ ? -1 : link.from.get(), POLLIN, 0});
        sources.push_back({frozen_ ? -1 : link.to.get(), POLLIN, 0});
      }
      ::poll(sources.data(), sources.size(), 5);
      if (cut_.exchange(false)) {
        links_.clear();
        continue;
      }
      if (frozen_) {
        continue;
      }
      for (size_t i = 0; i < links_.size();) {
        const bool up = move(links_[i].from, links_[i].to, true);
        const bool down = move(links_[i].to, links_[i].from, false);
        if (up && down) {
          ++i;
        } else {
          links_.erase(links_.begin() + static_cast<ptrdiff_t>(i));
        }
      }
      os::Descriptor one(
          ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (one) {
        links_.push_back({std::move(one), connect_to(target_)});
      }
    }
  }
  bool move(const os::Descriptor& from, const os::Descriptor& to, bool up) {
    char block[1 << 14];
    const ssize_t size = ::recv(from.get(), block, sizeof block, MSG_DONTWAIT);
    if (size <= 0) {
      return size < 0 && errno == EAGAIN;
    }
    if (up) {
      const std::lock_guard lock(mutex_);
      recorded_.append(block, static_cast<size_t>(size));
    }
    return ::send(to.get(), block, static_cast<size_t>(size), MSG_NOSIGNAL) ==
           size;
  }

  int target_;
  int port_ = 0;
  os::Descriptor listener_;
  std::vector<Link> links_;
  std::atomic<bool> done_{false}, cut_{false}, frozen_{false};
  std::mutex mutex_;
  std::string recorded_;
  std::thread thread_;
};

class HubTest : public ::testing::Test {
 protected:
  struct Node {
    FakeAgent::Script script;
    std::thread thread;
    std::atomic<bool> ended{false};
    Result<AgentLoopEnd> end;
    os::Descriptor stop{::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  };

  void TearDown() override {
    if (hub_ != nullptr) {
      hub_->close(os::Deadline::after(seconds(60)));
      hub_.reset();
    }
    for (const auto& node : nodes_) {
      ::eventfd_write(node->stop.get(), 1);  // one that was cut off knocks on
      node->thread.join();
    }
  }
  void open(size_t nodes, HubOptions options = {}) {
    options.address = "127.0.0.1";
    options.nodes = nodes;
    auto hub = Hub::open(options, key_, run_, os::real_clock());
    ASSERT_TRUE(hub.has_value()) << hub.error().to_string();
    hub_ = std::move(*hub);
  }
  Node& add_agent(int node, int port, bool until_idle = false) {
    nodes_.push_back(std::make_unique<Node>());
    Node& one = *nodes_.back();
    AgentLoopOptions options;
    options.key = key_;
    options.join.node = node;
    options.join.host = "host" + std::to_string(node);
    options.head_addresses = {"127.0.0.1:" + std::to_string(port)};
    options.until_idle = until_idle;
    options.stop_descriptor = one.stop.get();
    options.on_stop = [&one] {
      eventfd_t count = 0;
      return ::eventfd_read(one.stop.get(), &count) == 0 ? SIGTERM : 0;
    };
    options.make_agent = [&one]() -> Result<std::unique_ptr<Agent>> {
      return std::make_unique<FakeAgent>(one.script);
    };
    one.thread = std::thread([&one, options = std::move(options)] {
      one.end = run_agent_loop(options);
      one.ended = true;
    });
    return one;
  }
  // Serves the hub until something holds.
  ::testing::AssertionResult until(const std::function<bool()>& holds) {
    const auto deadline = os::Deadline::after(seconds(60));
    while (!holds()) {
      if (deadline.passed()) {
        return ::testing::AssertionFailure() << "it never came";
      }
      pollfd news{hub_->descriptor(), POLLIN, 0};
      ::poll(&news, 1, 10);
      for (NodeReport& report : hub_->receive(true, 1 << 20)) {
        reports_.push_back(std::move(report));
      }
    }
    return ::testing::AssertionSuccess();
  }
  template <class T>
  size_t count() const {
    return static_cast<size_t>(
        std::ranges::count_if(reports_, [](const NodeReport& one) {
          return std::holds_alternative<T>(one.report);
        }));
  }
  template <class T>
  T first() const {
    for (const NodeReport& one : reports_) {
      if (const auto* found = std::get_if<T>(&one.report)) {
        return *found;
      }
    }
    ADD_FAILURE() << "no such report";
    return {};
  }
  StartRequest request(int rank, int generation = 0) {
    StartRequest start;
    start.generation = generation;
    start.orphan_grace = seconds(1);
    RankCommand command;
    command.rank = rank;
    command.argv = {"prog"};
    command.log = folder_.path() / "node" / (std::to_string(rank) + ".log");
    command.show = rank == 0;
    start.commands.push_back(command);
    return start;
  }
  void print(const StartRequest& start, const std::string& text) const {
    std::ofstream(start.commands[0].log, std::ios::app) << text;
  }
  std::string log(int rank) const {
    return os::real_files().read(run_.rank_log(rank)).value_or("");
  }
  static Report exited(int rank, int code) {
    RankExited exit;
    exit.rank = rank;
    exit.pid = 1000 + rank;
    exit.status.code = code;
    return exit;
  }
  void start(size_t node, const StartRequest& start) {
    const size_t before = count<RankStarted>();
    ASSERT_TRUE(hub_->start(node, start).has_value());
    ASSERT_TRUE(until([&] { return count<RankStarted>() > before; }));
  }

  record::TemporaryFolder folder_;
  record::RunDirectory run_ =
      *record::RunDirectory::create(folder_.path(), "x");
  Key key_ = make_key();
  std::unique_ptr<Hub> hub_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::vector<NodeReport> reports_;
};

TEST_F(HubTest, RunsRanksOnAgentsThatJoin) {
  open(2);
  Node& zero = add_agent(0, hub_->port());
  Node& one = add_agent(1, hub_->port());
  ASSERT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value());
  EXPECT_EQ(hub_->host(1), "host1");
  EXPECT_EQ(hub_->joined(1)->interface, "lo");
  EXPECT_EQ(hub_->joined(1)->own_address, "127.0.0.1");
  EXPECT_THAT(hub_->joined(1)->head_address, HasSubstr("127.0.0.1:"));
  const StartRequest on_zero = request(0);
  const StartRequest on_one = request(1);
  start(0, on_zero);
  start(1, on_one);
  EXPECT_EQ(
      zero.script.read(&FakeAgent::Script::starts).at(0).commands[0].argv,
      std::vector<std::string>{"prog"});

  print(on_zero, "hello\nhalf");
  wire::Event event{1.5, 0, "n", wire::Phase{"train"}};
  zero.script.say(RankEvent{event, wire::to_json(event)});
  ASSERT_TRUE(until([&] { return count<RankOutput>() == 1; }));
  EXPECT_EQ(first<RankOutput>().line, "hello");
  hub_->inspect(1, 1);
  ASSERT_TRUE(until([&] { return count<RankPlace>() == 1; }));

  zero.script.say(exited(0, 0));
  zero.script.say(NodeIdle{});
  one.script.say(exited(1, 3));
  one.script.say(NodeIdle{});
  ASSERT_TRUE(until([&] {
    return count<NodeIdle>() == 2 && hub_->output_left() == 0 &&
           count<RankOutput>() == 2;
  }));
  EXPECT_EQ(count<RankEvent>(), 1);
  EXPECT_EQ(count<RankExited>(), 2);
  EXPECT_EQ(log(0), "hello\nhalf");
  EXPECT_EQ(count<NodeLost>(), 0);
  hub_->close(os::Deadline::after(seconds(60)));
  ASSERT_TRUE(until([&] { return zero.ended && one.ended; }));
  EXPECT_TRUE(one.end->said_bye);
}

TEST_F(HubTest, PlacesEndsOnItsOwnClockWheneverTheyAreTold) {
  open(2);
  Middle middle(hub_->port());
  Node& slow = add_agent(0, middle.port());
  Node& quick = add_agent(1, hub_->port());
  ASSERT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value());
  start(0, request(0));
  start(1, request(1));
  const auto end = [](Node& node, int rank) {
    RankExited exit;
    exit.rank = rank;
    exit.status.code = 1;
    exit.ended = os::real_clock().now();
    node.script.say(exit);
    return exit.ended;
  };
  middle.freeze(true);
  const os::Instant earlier = end(slow, 0);
  os::real_clock().sleep_for(milliseconds(20));  // the second is later
  const os::Instant later = end(quick, 1);
  ASSERT_TRUE(until([&] { return count<RankExited>() == 1; }));
  EXPECT_EQ(first<RankExited>().rank, 1);
  os::real_clock().sleep_for(milliseconds(400));
  middle.freeze(false);
  ASSERT_TRUE(until([&] { return count<RankExited>() == 2; }));
  const auto& late = std::get<RankExited>(reports_.back().report);
  ASSERT_EQ(late.rank, 0);
  // All on one machine: its clock is ours, but for the way of a message.
  EXPECT_GE(late.ended, earlier);
  EXPECT_GE(first<RankExited>().ended, later);
  EXPECT_LT(late.ended - earlier, milliseconds(350));
}

TEST_F(HubTest, EndsTheRanksOfAllNodes) {
  open(2);
  Node& zero = add_agent(0, hub_->port());
  add_agent(1, hub_->port());
  ASSERT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value());
  start(0, request(0));
  start(1, request(1));
  hub_->end(15, seconds(2));
  ASSERT_TRUE(until([&] { return count<NodeIdle>() == 2; }));
  EXPECT_EQ(
      zero.script.read(&FakeAgent::Script::ends).at(0),
      (std::pair<int, Duration>(15, seconds(2))));
  EXPECT_TRUE(first<RankExited>().was_stopped);
}

TEST_F(HubTest, LosesNothingWithAConnectionAndDoublesNothing) {
  open(1);
  Middle middle(hub_->port());
  Node& node = add_agent(0, middle.port());
  ASSERT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value());
  const StartRequest ranks = request(0);
  start(0, ranks);
  std::string text;
  for (int i = 0; i < 60000; ++i) {
    text += "line " + std::to_string(i) + "\n";
  }
  print(ranks, text);
  ASSERT_TRUE(until([&] { return log(0).size() > 1000; }));
  middle.cut();
  for (int i = 0; i < 3000; ++i) {
    wire::Event event{1.0 * i, 0, "n", wire::Phase{"p"}};
    node.script.say(RankEvent{event, wire::to_json(event)});
  }
  ASSERT_TRUE(until([&] { return count<RankEvent>() > 100; }));
  middle.cut();
  node.script.say(exited(0, 7));
  node.script.say(NodeIdle{});
  ASSERT_TRUE(until([&] {
    return count<NodeIdle>() > 0 && hub_->output_left() == 0 &&
           log(0).size() >= text.size();
  }));
  EXPECT_TRUE(log(0) == text);
  EXPECT_EQ(count<RankEvent>(), 3000);
  EXPECT_EQ(count<RankExited>(), 1);
  EXPECT_EQ(count<NodeLost>(), 0);
  EXPECT_TRUE(node.script.read(&FakeAgent::Script::ends).empty());
}

TEST_F(HubTest, GivesUpASilentNodeAndTakesItBack) {
  HubOptions options;
  options.lease = seconds(2);
  options.beat = milliseconds(200);
  options.hosts = {"a", "b"};
  open(2, options);
  Middle middle(hub_->port());
  add_agent(0, hub_->port());
  Node& cut_off = add_agent(1, middle.port());
  ASSERT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value());
  start(0, request(0));
  const StartRequest ranks = request(1);
  start(1, ranks);
  middle.freeze(true);
  ASSERT_TRUE(until([&] { return count<NodeLost>() == 1; }));
  EXPECT_THAT(first<NodeLost>().reason, HasSubstr("no sign of life"));
  EXPECT_TRUE(hub_->is_lost(1));
  EXPECT_EQ(hub_->host(1), "b");
  EXPECT_EQ(hub_->present(), std::vector<size_t>{0});
  ASSERT_TRUE(until([&] {
    return !cut_off.script.read(&FakeAgent::Script::ends).empty();
  })) << "its agent ends the ranks by itself";
  print(ranks, "too late\n");
  middle.freeze(false);
  ASSERT_TRUE(until([&] { return hub_->present().size() == 2; }));
  EXPECT_TRUE(hub_->is_lost(1));
  hub_->readmit(1);
  start(1, request(1, 1));
  EXPECT_FALSE(hub_->is_lost(1));
  EXPECT_EQ(count<RankExited>(), 0) << "the old ones are nobody's business";
  cut_off.script.say(exited(1, 0));
  cut_off.script.say(NodeIdle{});
  ASSERT_TRUE(until([&] { return count<NodeIdle>() == 1; }));
  EXPECT_EQ(count<RankExited>(), 1);
}

TEST_F(HubTest, SeesAnAgentThatIsGone) {
  HubOptions options;
  options.patience = milliseconds(300);
  open(1, options);
  Middle middle(hub_->port());
  add_agent(0, middle.port());
  ASSERT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value());
  start(0, request(0));
  middle.freeze(true);  // nobody comes back through it
  middle.cut();
  bool away = false;
  ASSERT_TRUE(until([&] {
    away = away || hub_->any_away();
    return count<NodeLost>() == 1;
  }));
  EXPECT_TRUE(away);
  EXPECT_FALSE(hub_->any_away());
  EXPECT_THAT(first<NodeLost>().reason, HasSubstr("its agent is gone"));
  // A start on a lost node is a loss, not an error.
  ASSERT_TRUE(hub_->start(0, request(0, 1)).has_value());
  ASSERT_TRUE(until([&] { return count<NodeLost>() == 2; }));
  middle.freeze(false);
}

TEST_F(HubTest, AShimGoesWhenItsRankDid) {
  open(1);
  Node& shim = add_agent(0, hub_->port(), true);
  ASSERT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value());
  const StartRequest ranks = request(0);
  start(0, ranks);
  print(ranks, "last words\n");
  shim.script.say(exited(0, 5));
  shim.script.say(NodeIdle{});
  ASSERT_TRUE(until([&] { return shim.ended.load(); }));
  ASSERT_TRUE(until([&] { return count<NodeIdle>() == 1; }));
  ASSERT_TRUE(until([&] { return hub_->output_left() == 0; }));
  EXPECT_EQ(shim.end->status.code, 5);
  EXPECT_EQ(log(0), "last words\n");
  EXPECT_EQ(count<NodeLost>(), 0);
}

TEST_F(HubTest, NamesTheNodesThatDoNotJoin) {
  HubOptions options;
  options.hosts = {"alpha", "beta"};
  open(2, options);
  add_agent(0, hub_->port());
  ASSERT_TRUE(until([&] { return hub_->present().size() == 1; }));
  const auto gathered = hub_->gather(os::Deadline::after(milliseconds(50)));
  ASSERT_FALSE(gathered.has_value());
  EXPECT_THAT(gathered.error().message(), HasSubstr("1 of 2"));
  EXPECT_THAT(gathered.error().message(), HasSubstr("beta"));
}

TEST_F(HubTest, TellsAnAgentWhyItIsRefused) {
  open(1);
  Node& stranger = add_agent(7, hub_->port());
  ASSERT_TRUE(until([&] { return stranger.ended.load(); }));
  ASSERT_FALSE(stranger.end.has_value());
  EXPECT_THAT(
      stranger.end.error().message(), HasSubstr("node 7, this run has 1"));
  EXPECT_EQ(hub_->refused(), 1);
  add_agent(0, hub_->port());
  ASSERT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value());
  Node& twin = add_agent(0, hub_->port());
  ASSERT_TRUE(until([&] { return twin.ended.load(); }));
  EXPECT_THAT(twin.end.error().message(), HasSubstr("has joined already"));
}

// A thousand half-open connections, strangers, wrong keys, a replay and
// garbage, while ranks run: they go on, and what was refused is logged.
TEST_F(HubTest, GoesOnUnderAFlood) {
  open(1);
  Middle middle(hub_->port());
  Node& node = add_agent(0, middle.port());
  ASSERT_TRUE(hub_->gather(os::Deadline::after(seconds(60))).has_value());
  start(0, request(0));
  const std::string replay = middle.recorded();
  ::testing::internal::CaptureStderr();

  std::vector<os::Descriptor> flood;
  std::vector<std::unique_ptr<wire::Channel>> strangers;
  std::vector<std::string> none;
  const auto put = [](const os::Descriptor& to, std::string_view text) {
    (void)!::send(to.get(), text.data(), text.size(), MSG_NOSIGNAL);
  };
  size_t events = 0;
  for (int i = 0; i < 1000; ++i) {
    flood.push_back(connect_to(hub_->port()));
    if (i % 5 == 1) {
      put(flood.back(), "GET / HTTP/1.1\r\n\r\n");
    } else if (i % 5 == 2) {
      put(flood.back(), "LSK1 and a half hello");
    } else if (i % 5 == 3) {
      put(flood.back(), replay);
    } else if (i % 5 == 4 && strangers.size() < 100) {
      strangers.push_back(
          wire::Channel::make(
              connect_to(hub_->port()),
              wire::ChannelRole::kClient,
              make_key(),
              std::string(kAgentPurpose)));
      (void)strangers.back()->send(encode(Join{})).has_value();
    }
    if (i % 20 == 0) {
      for (const auto& stranger : strangers) {
        (void)stranger->pump(none).has_value();
      }
      wire::Event event{1.0 * i, 0, "n", wire::Phase{"p"}};
      node.script.say(RankEvent{event, wire::to_json(event)});
      ++events;
      ASSERT_TRUE(until([&] { return count<RankEvent>() == events; }));
    }
  }
  ASSERT_TRUE(until([&] {
    for (const auto& stranger : strangers) {
      (void)stranger->pump(none).has_value();
    }
    return hub_->refused() >= flood.size();
  })) << hub_->refused();
  EXPECT_EQ(count<NodeLost>(), 0);
  EXPECT_TRUE(node.script.read(&FakeAgent::Script::ends).empty());
  node.script.say(exited(0, 0));
  node.script.say(NodeIdle{});
  ASSERT_TRUE(until([&] { return count<NodeIdle>() == 1; }));
  const std::string logged = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(logged, HasSubstr("refused"));
  EXPECT_THAT(logged, HasSubstr("127.0.0.1:"));
  // A line a second, not a line a stranger.
  EXPECT_LT(std::ranges::count(logged, '\n'), 120);
}

}  // namespace
}  // namespace lockstep::launch
