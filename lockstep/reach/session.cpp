#include "lockstep/reach/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "lockstep/base/id.h"
#include "lockstep/base/log.h"
#include "lockstep/reach/message.h"
#include "lockstep/reach/payload.h"
#include "lockstep/reach/ssh.h"
#include "lockstep/reach/ssh_line.h"

namespace lockstep::reach {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMostAtOnce = 32;  // hosts, of which one may jump for all
constexpr size_t kUnderWay = 16;    // requests of call_many
constexpr int kAttempts = 3;
constexpr Duration kPersonPatience = seconds(180);

class SshSession : public Session {
 public:
  SshSession(std::string host, SshLine line, bool was_sent, Duration took)
      : host_(std::move(host)),
        line_(std::move(line)),
        was_sent_(was_sent),
        took_(took) {}
  ~SshSession() override { line_.end(milliseconds(500)); }

  const std::string& host() const override { return host_; }
  bool was_sent() const override { return was_sent_; }
  Duration took() const override { return took_; }

  Result<nlohmann::json> call(
      const std::string& verb,
      nlohmann::json arguments,
      os::Deadline deadline) override {
    LOCKSTEP_TRY(post({verb, std::move(arguments)}, deadline));
    return take(deadline);
  }

  Result<void> call_many(
      const std::string& verb,
      const std::function<Result<std::optional<nlohmann::json>>()>& next,
      Duration stall) override {
    size_t under_way = 0;
    std::optional<Error> failed;
    bool more = true;
    while (more || under_way > 0) {
      if (more && under_way < kUnderWay && !failed) {
        auto arguments = next();
        if (!arguments) {
          failed = arguments.error();
        }
        if (!arguments || !*arguments) {
          more = false;
          continue;
        }
        LOCKSTEP_TRY(
            post({verb, std::move(**arguments)}, os::Deadline::after(stall)));
        ++under_way;
        continue;
      }
      more = more && !failed;
      if (under_way == 0) {
        break;
      }
      // Answers to what is under way are taken also after a failure, so that
      // the session stays in step.
      auto answer = take(os::Deadline::after(stall));
      --under_way;
      if (broken_) {
        return answer.error();
      }
      if (!answer && !failed) {
        failed = answer.error();
        more = false;
      }
    }
    if (failed) {
      return std::move(*failed);
    }
    return {};
  }

 private:
  Result<void> post(const Request& request, os::Deadline deadline) {
    if (broken_) {
      return Error(*broken_);
    }
    auto written = write_request(*line_.stream, request, deadline);
    if (!written) {
      return broke(written.error());
    }
    return {};
  }

  Result<nlohmann::json> take(os::Deadline deadline) {
    if (broken_) {
      return Error(*broken_);
    }
    auto answer = read_answer(*line_.stream, deadline);
    if (!answer) {
      return broke(answer.error());
    }
    return std::move(*answer).with_context(host_);
  }

  // After a deadline or half a message nothing that follows can be trusted.
  Error broke(const Error& why) {
    if (why.code() == ErrorCode::kTimeout) {
      broken_ = Error(
                    ErrorCode::kUnavailable,
                    fmt::format("{}: no answer in time", host_))
                    .with_retry();
    } else if (why.code() == ErrorCode::kCorrupt) {
      broken_ = Error(ErrorCode::kUnavailable, why.message());
    } else {
      // ssh says why only as it goes.
      (void)line_.process->wait(os::Deadline::after(seconds(1))).has_value();
      broken_ = explain_failure(host_, Stage::kTalk, line_.words());
    }
    line_.stream->close();
    return *broken_;
  }

  std::string host_;
  SshLine line_;
  bool was_sent_;
  Duration took_;
  std::optional<Error> broken_;
};

std::string machine() {
  utsname names{};
  ::uname(&names);
  return names.machine;
}

class Attempt {
 public:
  Attempt(
      const std::string& host,
      const ReachOptions& options,
      Payload& payload,
      bool batch)
      : host_(host), options_(options), payload_(payload), batch_(batch) {}

  Result<std::unique_ptr<Session>> run() {
    const Key key = make_key();
    mark_ = "LOCKSTEP-" + to_hex(key).substr(0, 16);
    const char* home = std::getenv("LOCKSTEP_FAR_HOME");
    LOCKSTEP_ASSIGN(
        const std::string bootstrap,
        bootstrap_command(
            {payload_.hash(), mark_, home == nullptr ? "" : home}));
    LOCKSTEP_ASSIGN(
        std::vector<std::string> command, ssh_command(options_, batch_));
    command.insert(command.end(), {"--", host_, bootstrap});
    LOCKSTEP_ASSIGN(line_, start_ssh(host_, command, batch_));
    auto started = start();
    if (!started) {
      words_ = line_.words();
      line_.end(Duration(0));
      return started.error();
    }
    return std::make_unique<SshSession>(
        host_, std::move(line_), sent_, os::real_clock().now() - started_);
  }

  const std::string& words() const { return words_; }

 private:
  Result<void> start() {
    LOCKSTEP_ASSIGN(const std::string state, marked(Stage::kConnect));
    if (state.starts_with("absent ")) {
      LOCKSTEP_TRY(send(state.substr(7)));
      sent_ = true;
    } else if (state != "here") {
      return Error(
          ErrorCode::kUnavailable,
          fmt::format("{}: its shell answered '{}'", host_, state));
    }
    // The far end itself speaks only when asked; ask, so that a program that
    // cannot run there is told as that, also when it is gone before we ask.
    const auto asked = write_request(*line_.stream, {"hello", {}}, patience());
    if (!asked) {
      return ended(Stage::kStart, asked.error());
    }
    auto answer = read_answer(*line_.stream, patience());
    if (!answer) {
      return ended(Stage::kStart, answer.error());
    }
    return {};
  }

  Result<void> send(const std::string& there) {
    const size_t space = there.find(' ');
    const std::string kind = there.substr(0, space);
    if (kind != machine()) {
      return Error(
                 ErrorCode::kUnavailable,
                 fmt::format(
                     "{}: its architecture is {}, this lockstep is for {}",
                     host_,
                     kind,
                     machine()))
          .with_fix(
              "all hosts of a run need the architecture of this machine; "
              "leave this one out");
    }
    std::string_view bytes = payload_.bytes();
    if (space != std::string::npos && there.substr(space + 1) == "gzip") {
      LOCKSTEP_ASSIGN(bytes, payload_.packed());
    }
    const std::string length = fmt::format("{}\n", bytes.size());
    auto written = line_.stream->write_all(
        std::as_bytes(std::span(length.data(), length.size())), patience());
    while (written && !bytes.empty()) {
      const std::string_view piece = bytes.substr(0, kPieceOfProgram);
      bytes.remove_prefix(piece.size());
      written = line_.stream->write_all(
          std::as_bytes(std::span(piece.data(), piece.size())), patience());
    }
    // Why a write failed is what the far side says.
    LOCKSTEP_ASSIGN(const std::string state, marked(Stage::kPlace));
    if (state != "sent") {
      // The complaint travels beside the mark.
      (void)line_.process->wait(os::Deadline::after(seconds(5))).has_value();
      return explain_failure(host_, Stage::kPlace, line_.words());
    }
    return {};
  }

  Result<std::string> marked(Stage stage) {
    auto state = read_marked(line_, mark_, patience());
    if (!state) {
      return ended(stage, state.error());
    }
    return state;
  }

  Error ended(Stage stage, const Error& why) {
    if (why.code() == ErrorCode::kTimeout) {
      return Error(
                 ErrorCode::kUnavailable,
                 fmt::format(
                     "{}: no answer within {}",
                     host_,
                     format_duration(options_.patience)))
          .with_fix(
              fmt::format("is it on, and does 'ssh {} true' work?", host_))
          .with_retry();
    }
    // The stream ends before the process does, and it says why on its way.
    (void)line_.process->wait(os::Deadline::after(seconds(5))).has_value();
    return explain_failure(host_, stage, line_.words());
  }

  os::Deadline patience() const {
    return os::Deadline::after(
        batch_ ? options_.patience
               : std::max(options_.patience, kPersonPatience));
  }

  static constexpr size_t kPieceOfProgram = 256 << 10;
  const std::string& host_;
  const ReachOptions& options_;
  Payload& payload_;
  bool batch_;
  std::string mark_;
  std::string words_;
  SshLine line_;
  bool sent_ = false;
  os::Instant started_ = os::real_clock().now();
};

bool has_terminal() {
  const os::Descriptor terminal(::open("/dev/tty", O_RDWR | O_CLOEXEC));
  return terminal && ::isatty(0) == 1;
}

struct Tried {
  Result<std::unique_ptr<Session>> session;
  bool ask_person = false;
};

Tried try_host(
    const std::string& host,
    const ReachOptions& options,
    Payload& payload,
    bool batch) {
  if (host.empty() || host.starts_with('-')) {
    return {Error(
        ErrorCode::kInvalidInput,
        fmt::format("'{}' is not the name of a host", host))};
  }
  for (int attempt = 1;; ++attempt) {
    Attempt one(host, options, payload, batch);
    auto session = one.run();
    if (session || attempt == kAttempts || !is_passing(one.words())) {
      const bool ask = !session && needs_person(one.words());
      return {std::move(session), ask};
    }
    log_debug(fmt::format("{}; trying again", session.error().to_string()));
    std::this_thread::sleep_for(milliseconds(200) * attempt);
  }
}

}  // namespace

std::vector<Result<std::unique_ptr<Session>>> reach_all(
    const std::vector<std::string>& hosts,
    const ReachOptions& options) {
  std::vector<Result<std::unique_ptr<Session>>> results;
  auto payload = Payload::open(options.program);
  if (!payload) {
    for (size_t i = 0; i < hosts.size(); ++i) {
      results.emplace_back(Error(payload.error()));
    }
    return results;
  }
  std::vector<std::optional<Tried>> tried(hosts.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < hosts.size(); i = next++) {
      tried[i] = try_host(hosts[i], options, **payload, true);
    }
  };
  if (hosts.size() == 1) {
    work();
  } else {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < std::min(hosts.size(), kMostAtOnce); ++i) {
      threads.emplace_back(work);
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
  }
  // One after the other: two questions on one terminal cannot be told apart.
  const bool terminal = has_terminal();
  for (size_t i = 0; i < hosts.size(); ++i) {
    if (tried[i]->ask_person && terminal) {
      tried[i] = try_host(hosts[i], options, **payload, false);
    }
    results.push_back(std::move(tried[i]->session));
  }
  return results;
}

Result<std::unique_ptr<Session>> reach(
    const std::string& host,
    const ReachOptions& options) {
  return std::move(reach_all({host}, options).front());
}

}  // namespace lockstep::reach
