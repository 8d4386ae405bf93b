#include "lockstep/launch/mirror.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>

#include "lockstep/launch/run_verbs.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::launch {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kAnswer = seconds(20);  // of the far end
constexpr int kFirstWait = 100;            // milliseconds, for news
constexpr int kLongestWait = 250;
constexpr std::string_view kCheckpoints = "checkpoints/";

Result<void> write_at(
    const os::Path& path,
    uint64_t offset,
    const json::binary_t& data,
    int flags) {
  const os::Descriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666));
  size_t done = 0;
  while (file && done < data.size()) {
    const ssize_t size = ::pwrite(
        file.get(),
        data.data() + done,
        data.size() - done,
        static_cast<off_t>(offset + done));
    if (size < 0 && errno != EINTR) {
      break;
    }
    done += size > 0 ? static_cast<size_t>(size) : 0;
  }
  if (!file || done < data.size()) {
    return os_error(fmt::format("cannot write {}", path.string()), errno);
  }
  return {};
}

struct FarFile {
  std::string name;  // in the run's directory
  uint64_t size = 0;
  int64_t time = 0;  // nanoseconds since 1970, by the far clock
};

// A file, or a checkpoint that is a folder.
struct FarPart {
  std::string name;
  uint64_t size = 0;
  std::vector<FarFile> files;
};

class RemoteMirror : public Mirror {
 public:
  RemoteMirror(
      const record::RunDirectory& run,
      RunStateFile state,
      Connect connect,
      std::unique_ptr<reach::Session> session)
      : run_(run),
        state_(std::move(state)),
        connect_(std::move(connect)),
        session_(std::move(session)) {}

  const RunStateFile& state() const override { return state_; }

  Result<bool> update(os::Deadline deadline) override {
    return guarded([&] { return bring_news(deadline); });
  }

  Result<void> stop(bool now) override {
    LOCKSTEP_TRY(call("stop", {{"now", now}}));
    return {};
  }

  Result<void> fetch_all(std::optional<Bytes> most) override {
    return guarded([&] { return bring_rest(most); });
  }

 private:
  // The far end is another process: its words may be anything.
  template <class Action>
  auto guarded(const Action& action) -> decltype(action()) {
    try {
      return action();
    } catch (const json::exception& error) {
      return Error(
          ErrorCode::kCorrupt,
          fmt::format("{}: {}", state_.head_host, error.what()));
    }
  }

  Result<bool> bring_news(os::Deadline deadline) {
    LOCKSTEP_ASSIGN(const bool mine, take_lock());
    if (!mine) {
      // Somebody else brings the files; we look at them.
      os::real_clock().sleep_for(milliseconds(kFirstWait));
      LOCKSTEP_ASSIGN(const auto state, read_run_state(run_));
      state_ = state.value_or(state_);
      return true;
    }
    while (true) {
      json offsets = json::object();
      for (const std::string& name : followed_files(run_)) {
        const auto size = os::real_files().size(run_.path() / name);
        offsets[name] = size ? size->count : 0;
      }
      LOCKSTEP_ASSIGN(
          const json answer,
          call(
              "tail",
              {{"offsets", offsets}, {"wait", wait_}, {"state", told_}}));
      bool any = false;
      for (const json& piece : answer.at("pieces")) {
        const std::string name = piece.at("name").get<std::string>();
        if (!is_plain_name(name)) {
          return Error(
              ErrorCode::kCorrupt,
              fmt::format("{} offers a file '{}'", state_.head_host, name));
        }
        any = true;
        LOCKSTEP_TRY(write_at(
            run_.path() / name,
            piece.at("offset").get<uint64_t>(),
            piece.at("data").get_binary(),
            0));
      }
      wait_ = any ? kFirstWait : std::min(kLongestWait, wait_ + 10);
      LOCKSTEP_TRY(take_state(answer.at("state").get<std::string>()));
      const bool complete = !answer.at("more").get<bool>();
      if (complete || deadline.passed()) {
        return complete;
      }
    }
  }

  Result<void> bring_rest(std::optional<Bytes> most) {
    LOCKSTEP_ASSIGN(const bool mine, take_lock());
    if (!mine) {
      return {};
    }
    LOCKSTEP_ASSIGN(const json answer, call("files", json::object()));
    std::vector<FarPart> left;
    uint64_t room = most.value_or(Bytes{UINT64_MAX}).count;
    for (const FarPart& part : missing_parts(answer)) {
      if (part.size > room) {
        left.push_back(part);
        continue;
      }
      room -= part.size;
      for (const FarFile& file : part.files) {
        LOCKSTEP_TRY(bring(file));
      }
    }
    state_.incomplete = !left.empty();
    LOCKSTEP_TRY(write_run_state(run_, state_));
    return left.empty() ? Result<void>() : no_room(left);
  }

  // In the order in which they are wanted: a checkpoint that does not fit must
  // not take the place of the tables, and half a folder of shards is nothing.
  std::vector<FarPart> missing_parts(const json& answer) const {
    const std::vector<std::string> followed = followed_files(run_);
    std::map<std::string, FarPart> parts;
    for (const json& entry : answer.at("files")) {
      FarFile file{
          entry.at("name").get<std::string>(),
          entry.at("size").get<uint64_t>(),
          entry.at("time").get<int64_t>()};
      const bool grows =
          std::ranges::find(followed, file.name) != followed.end();
      // Our job.yaml is as the user gave it, with what is of single hosts.
      if (!is_plain_name(file.name) || file.name == "job.yaml" ||
          is_here(file, grows)) {
        continue;
      }
      const size_t inside =
          file.name.starts_with(kCheckpoints) ? kCheckpoints.size() : 0;
      const std::string name = file.name.substr(
          0, inside == 0 ? std::string::npos : file.name.find('/', inside));
      FarPart& part = parts[name];
      part.name = name;
      part.size += file.size;
      part.files.push_back(std::move(file));
    }
    std::vector<FarPart> order;
    for (auto& [name, part] : parts) {
      order.push_back(std::move(part));
    }
    std::ranges::stable_sort(order, {}, [](const FarPart& part) {
      return std::pair(part.name.starts_with(kCheckpoints), part.size);
    });
    return order;
  }

  static Error no_room(const std::vector<FarPart>& left) {
    std::string names;
    for (const FarPart& part : left) {
      names += fmt::format(
          "{}{} ({})",
          names.empty() ? "" : ", ",
          part.name,
          format_bytes(Bytes{part.size}));
    }
    return Error(
        ErrorCode::kNoSpace,
        fmt::format("the budget does not pay for fetching {}", names));
  }

  // One process at a time; when it goes, the next takes over.
  Result<bool> take_lock() {
    if (lock_) {
      return true;
    }
    const os::Path path = run_.path() / ".mirror";
    os::Descriptor lock(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    if (!lock) {
      return os_error(fmt::format("cannot write {}", path.string()), errno);
    }
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
      return false;
    }
    lock_ = std::move(lock);
    return true;
  }

  // The head's own words, with where it is seen from here.
  Result<void> take_state(const std::string& text) {
    if (text == told_) {
      return {};
    }
    LOCKSTEP_ASSIGN(RunStateFile now, parse_run_state(text, state_.head_host));
    now.launcher = state_.launcher;
    now.head_host = state_.head_host;
    now.head_directory = state_.head_directory;
    now.hosts = state_.hosts;
    now.ssh_options = state_.ssh_options;
    now.command = state_.command;
    now.cost = state_.cost;
    now.cluster = state_.cluster;
    now.outputs = state_.outputs;
    // How long it took is the head's to say, when it began is ours: clocks may
    // be off.
    now.ended += now.ended > 0 ? state_.started - now.started : 0;
    now.started = state_.started;
    told_ = text;
    state_ = std::move(now);
    // The end is written when everything is here: fetch_all().
    return state_.is_running() ? write_run_state(run_, state_) : Result<void>();
  }

  Result<json> call(const std::string& verb, json arguments) {
    if (session_ == nullptr) {
      LOCKSTEP_ASSIGN(session_, connect_());
    }
    arguments["directory"] = state_.head_directory;
    auto answer = session_->call(
        verb, std::move(arguments), os::Deadline::after(kAnswer));
    if (!answer && (answer.error().code() == ErrorCode::kUnavailable ||
                    answer.error().code() == ErrorCode::kTimeout)) {
      session_.reset();
    }
    return answer;
  }

  bool is_here(const FarFile& file, bool grows) const {
    struct stat facts{};
    if (::stat((run_.path() / file.name).c_str(), &facts) != 0) {
      return false;
    }
    const int64_t ours =
        static_cast<int64_t>(facts.st_mtim.tv_sec) * 1'000'000'000 +
        facts.st_mtim.tv_nsec;
    return static_cast<uint64_t>(facts.st_size) == file.size &&
           (grows || ours == file.time);
  }

  Result<void> bring(const FarFile& file) {
    const os::Path path = run_.path() / file.name;
    LOCKSTEP_TRY(os::real_files().make_directories(path.parent_path()));
    const os::Path temporary =
        path.parent_path() /
        fmt::format(".{}.tmp-fetch", path.filename().string());
    const auto fetched = fetch(file.name, temporary);
    if (!fetched) {
      ::unlink(temporary.c_str());
      // A checkpoint that was replaced meanwhile has another name's turn.
      return fetched.error().code() == ErrorCode::kNotFound ? Result<void>()
                                                            : fetched;
    }
    const timespec stamp{file.time / 1'000'000'000, file.time % 1'000'000'000};
    const timespec times[2] = {stamp, stamp};
    ::utimensat(AT_FDCWD, temporary.c_str(), times, 0);
    if (::rename(temporary.c_str(), path.c_str()) != 0) {
      return os_error(fmt::format("cannot write {}", path.string()), errno);
    }
    return {};
  }

  Result<void> fetch(const std::string& name, const os::Path& to) {
    uint64_t offset = 0;
    int flags = O_TRUNC;
    while (true) {
      LOCKSTEP_ASSIGN(
          const json piece,
          call("fetch", {{"name", name}, {"offset", offset}}));
      const auto& data = piece.at("data").get_binary();
      LOCKSTEP_TRY(write_at(to, offset, data, flags));
      flags = 0;
      offset += data.size();
      if (data.empty() || offset >= piece.at("size").get<uint64_t>()) {
        return {};
      }
    }
  }

  record::RunDirectory run_;
  RunStateFile state_;
  Connect connect_;
  std::unique_ptr<reach::Session> session_;
  os::Descriptor lock_;
  std::string told_;  // the state as the head wrote it
  int wait_ = kFirstWait;
};

}  // namespace

std::unique_ptr<Mirror> open_mirror(
    const record::RunDirectory& run,
    RunStateFile state,
    Connect connect,
    std::unique_ptr<reach::Session> session) {
  return std::make_unique<RemoteMirror>(
      run, std::move(state), std::move(connect), std::move(session));
}

}  // namespace lockstep::launch
