#include "lockstep/commands/uploader.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "lockstep/base/log.h"
#include "lockstep/commands/far_nodes.h"
#include "lockstep/commands/outputs.h"
#include "lockstep/fetch/s3.h"
#include "lockstep/os/clock.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr Duration kLook = milliseconds(500);
constexpr Duration kLongestPause = std::chrono::minutes(1);
// A growing file takes at most a twentieth of the time: all of it goes again.
constexpr int kShare = 20;

// What tells one state of a file from another.
struct Mark {
  uint64_t size = 0;
  uint64_t inode = 0;
  int64_t changed = 0;  // nanoseconds
  bool operator==(const Mark&) const = default;
};

std::optional<Mark> mark_of(const os::Path& path) {
  struct stat facts{};
  if (::stat(path.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) {
    return std::nullopt;
  }
  return Mark{
      static_cast<uint64_t>(facts.st_size),
      facts.st_ino,
      facts.st_mtim.tv_sec * int64_t{1000000000} + facts.st_mtim.tv_nsec};
}

// Files that only grow: any beginning of them is whole.
bool grows(const std::string& name) {
  return name.ends_with(".jsonl") || name.ends_with(".log") ||
         name.ends_with(".csv") || name.find(".tfevents.") != std::string::npos;
}

struct Entry {
  std::optional<Mark> seen;    // at the last look
  std::optional<Mark> stored;  // what the object is
  os::Instant not_before{};
  Duration pause{};  // after failures
};

class Uploader {
 public:
  Uploader(os::Path directory, fetch::S3Address to, fetch::S3Options options)
      : directory_(std::move(directory)),
        to_(std::move(to)),
        s3_(std::move(options)) {}

  void set_interval(Duration interval) { interval_ = interval; }

  // One look at all files; stores those whose time has come. The number that
  // could not be stored, or changed meanwhile.
  int look(bool is_last) {
    int missing = 0;
    for (const fs::path& relative : files()) {
      missing += look_at(relative, is_last) ? 0 : 1;
      if (!is_last && finishing()) {
        break;  // the last round begins at once
      }
    }
    write_story();
    return missing;
  }

  // Our standard input ended: whoever holds the run wants the last round.
  static bool finishing() {
    pollfd input{STDIN_FILENO, POLLIN, 0};
    char ignored[64];
    return ::poll(&input, 1, 0) > 0 &&
           ::read(STDIN_FILENO, ignored, sizeof ignored) <= 0;
  }

 private:
  // Checkpoints first.
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::recursive_directory_iterator one(directory_, error), end;
         !error && one != end;
         one.increment(error)) {
      std::error_code ignored;
      const fs::path relative = one->path().lexically_relative(directory_);
      if (one->is_regular_file(ignored) && !is_not_stored(relative)) {
        found.push_back(relative);
      }
    }
    std::ranges::sort(found, {}, [](const fs::path& path) {
      const std::string first = path.begin()->string();
      return std::pair(
          first == "checkpoints"   ? 0
          : first == "tensorboard" ? 1
                                   : 2,
          path.string());
    });
    return found;
  }

  bool look_at(const fs::path& relative, bool is_last) {
    const os::Path path = directory_ / relative;
    Entry& entry = entries_[relative.string()];
    const auto now = mark_of(path);
    // In place of another one by a rename, it is whole at once; one that is
    // written where it lies must stand still.
    const bool stands = now && entry.seen &&
                        (entry.seen == now || entry.seen->inode != now->inode);
    entry.seen = now;
    if (!now || entry.stored == now) {
      return true;
    }
    const bool growing = grows(relative.string());
    const bool is_due = os::real_clock().now() >= entry.not_before;
    if (!is_last && (!is_due || (!stands && !growing))) {
      return true;
    }
    return store(path, relative, entry, growing);
  }

  bool store(
      const os::Path& path,
      const fs::path& relative,
      Entry& entry,
      bool growing) {
    const os::Instant begun = os::real_clock().now();
    const auto mark = entry.seen;
    fetch::TransferOptions options;
    options.unchanged = !growing;
    const auto done = s3_.upload(path, to_.below(relative.string()), options);
    const os::Instant now = os::real_clock().now();
    if (done) {
      entry.stored = mark;
      entry.pause = Duration(0);
      entry.not_before =
          growing ? now + std::max(interval_, (now - begun) * kShare) : now;
      story_[relative.string()] = {
          {"bytes", done->bytes},
          {"time", os::real_clock().unix_seconds()},
          {"etag", done->etag}};
      is_story_new_ = true;
      return true;
    }
    if (done.error().code() == ErrorCode::kAborted ||
        done.error().code() == ErrorCode::kNotFound) {
      if (mark_of(path) != mark) {
        return false;  // it was replaced meanwhile: next time
      }
    }
    log_warning(done.error().to_string());
    entry.pause = std::clamp(entry.pause * 2, interval_, kLongestPause);
    entry.not_before = now + entry.pause;
    story_error_ = done.error().to_string();
    is_story_new_ = true;
    return false;
  }

  // stored.json: what is there, for people and for reports.
  void write_story() {
    if (!is_story_new_) {
      return;
    }
    is_story_new_ = false;
    json story = {{"outputs", to_.to_string()}, {"files", story_}};
    if (!story_error_.empty()) {
      story["error"] = story_error_;
    }
    (void)os::real_files()
        .write_atomic(directory_ / "stored.json", story.dump(1) + "\n")
        .has_value();
    story_error_.clear();
  }

  const os::Path directory_;
  const fetch::S3Address to_;
  fetch::S3 s3_;
  Duration interval_ = std::chrono::seconds(15);
  std::map<std::string, Entry> entries_;
  json story_ = json::object();
  std::string story_error_;
  bool is_story_new_ = false;
};

// Only when nobody else wants the processor or the disk.
void step_back() {
  constexpr int kProcess = 1;
  constexpr int kIdleClass = 3 << 13;
  const sched_param none{};
  (void)::sched_setscheduler(0, SCHED_IDLE, &none);
  (void)::syscall(SYS_ioprio_set, kProcess, 0, kIdleClass);
}

// The ranks have ended.
void step_forward() {
  constexpr int kProcess = 1;
  const sched_param none{};
  (void)::sched_setscheduler(0, SCHED_OTHER, &none);
  (void)::syscall(SYS_ioprio_set, kProcess, 0, 0);
}

fetch::S3Options options_of(const json& orders) {
  fetch::S3Options options;
  options.client.settings.environment =
      orders.at("environment").get<std::map<std::string, std::string>>();
  const std::string style = orders.value("addressing", "");
  options.addressing = style == "path"      ? fetch::S3Addressing::kPath
                       : style == "virtual" ? fetch::S3Addressing::kVirtual
                                            : fetch::S3Addressing::kAuto;
  options.client.say = [](const std::string& line) { log_debug(line); };
  options.state = cache_folder();
  options.workers = 2;  // little memory, and few connections beside training
  return options;
}

int upload(const os::Path& directory, const json& orders) {
  auto address =
      fetch::parse_s3_address(orders.at("address").get<std::string>());
  if (!address) {
    log_error(address.error().to_string());
    return 1;
  }
  Uploader uploader(directory, *address, options_of(orders));
  uploader.set_interval(milliseconds(orders.at("interval_ms").get<int64_t>()));
  step_back();
  while (!Uploader::finishing()) {
    uploader.look(false);
    pollfd input{STDIN_FILENO, POLLIN, 0};
    ::poll(&input, 1, static_cast<int>(kLook / milliseconds(1)));
  }
  step_forward();
  constexpr int kRounds = 5;
  for (int round = 1;; ++round) {
    if (uploader.look(true) == 0) {
      return 0;
    }
    if (round == kRounds) {
      return 1;
    }
    os::real_clock().sleep_for(std::chrono::seconds(round));
  }
}

}  // namespace

Result<std::string> uploader_orders(
    const launch::Job& job,
    const record::RunDirectory& run,
    Keys keys) {
  const std::string address = outputs_of(job, run);
  if (address.empty()) {
    return "";
  }
  LOCKSTEP_ASSIGN(const fetch::AwsSettings settings, fetch::load_settings());
  std::map<std::string, std::string> environment;
  for (const char* name :
       {"AWS_EC2_METADATA_DISABLED", "AWS_EC2_METADATA_SERVICE_ENDPOINT"}) {
    if (keys == Keys::kSent && !settings.variable(name).empty()) {
      environment[name] = settings.variable(name);
    }
  }
  if (!settings.region().empty()) {
    environment["AWS_REGION"] = settings.region();
  }
  if (settings.custom_endpoint("s3")) {
    environment["AWS_ENDPOINT_URL_S3"] =
        settings.endpoint("s3", settings.region());
  }
  if (!settings.ca_file().empty()) {
    environment["AWS_CA_BUNDLE"] = settings.ca_file().string();
  }
  if (keys == Keys::kSent) {
    LOCKSTEP_ASSIGN(
        const fetch::Credentials own, fetch::find_credentials(settings)->get());
    environment["AWS_ACCESS_KEY_ID"] = own.keys.key_id;
    environment["AWS_SECRET_ACCESS_KEY"] = own.keys.secret.reveal();
    if (!own.keys.session_token.empty()) {
      environment["AWS_SESSION_TOKEN"] = own.keys.session_token.reveal();
    }
  }
  Duration interval = std::chrono::seconds(15);
  if (const char* told = std::getenv("LOCKSTEP_STORE_INTERVAL")) {
    LOCKSTEP_ASSIGN(
        interval, parse_duration(told).with_context("LOCKSTEP_STORE_INTERVAL"));
  }
  return json{
      {"address", address},
      {"environment", environment},
      {"addressing", settings.value(settings.profile, "s3.addressing_style")},
      {"interval_ms", interval / milliseconds(1)}}
      .dump();
}

int uploader_main() {
  ::signal(SIGPIPE, SIG_IGN);
  init_log({});
  // Unbuffered: what follows the orders is for poll.
  const auto line = [] {
    std::string text;
    for (char c = 0; ::read(STDIN_FILENO, &c, 1) == 1 && c != '\n';) {
      text += c;
    }
    return text;
  };
  const os::Path directory = line();
  const json orders = json::parse(line(), nullptr, false);
  if (!orders.is_object() || !orders.contains("address") ||
      !orders.contains("environment") || !orders.contains("interval_ms")) {
    log_error("uploader: no orders came");
    return 2;
  }
  return upload(directory, orders);
}

}  // namespace lockstep::commands
