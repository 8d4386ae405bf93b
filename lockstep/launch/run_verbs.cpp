#include "lockstep/launch/run_verbs.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "lockstep/launch/renting.h"
#include "lockstep/launch/run_state.h"
#include "lockstep/os/clock.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kSmallestShare = 1 << 14;

Result<record::RunDirectory> directory_of(const json& request) {
  return record::RunDirectory::existing(
      request.at("directory").get<std::string>());
}

Result<RunStateFile> state_of(const record::RunDirectory& run) {
  LOCKSTEP_ASSIGN(auto state, read_run_state(run));
  if (!state) {
    return Error(
        ErrorCode::kNotFound,
        fmt::format("{} has no state.json", run.path().string()));
  }
  return std::move(*state);
}

uint64_t size_of(const os::Path& path) {
  struct stat facts{};
  return ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode)
             ? static_cast<uint64_t>(facts.st_size)
             : 0;
}

Result<json::binary_t>
read_piece(const os::Path& path, uint64_t offset, size_t most) {
  const os::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) {
    return os_error(fmt::format("cannot read {}", path.string()), errno);
  }
  std::vector<uint8_t> data(most);
  const ssize_t size =
      ::pread(file.get(), data.data(), data.size(), static_cast<off_t>(offset));
  if (size < 0) {
    return os_error(fmt::format("cannot read {}", path.string()), errno);
  }
  data.resize(static_cast<size_t>(size));
  return json::binary_t(std::move(data));
}

struct News {
  std::string name;
  uint64_t offset = 0;
  uint64_t left = 0;
};

std::vector<News> look(const record::RunDirectory& run, const json& offsets) {
  std::vector<News> news;
  for (std::string& name : followed_files(run)) {
    const uint64_t have = offsets.value(name, uint64_t{0});
    const uint64_t size = size_of(run.path() / name);
    if (size > have) {
      news.push_back({std::move(name), have, size - have});
    }
  }
  return news;
}

Result<json> tail(const json& request) {
  LOCKSTEP_ASSIGN(const record::RunDirectory run, directory_of(request));
  const json offsets = request.value("offsets", json::object());
  const std::string known = request.value("state", "");
  const auto deadline =
      os::Deadline::after(std::chrono::milliseconds(request.value("wait", 0)));
  // The state first: what it says ended is whole in the files read after it.
  std::string state;
  std::vector<News> news;
  while (true) {
    LOCKSTEP_ASSIGN(const RunStateFile now, state_of(run));
    state = to_json(now);
    news = look(run, offsets);
    if (!news.empty() || state != known || deadline.passed()) {
      break;
    }
    os::real_clock().sleep_for(std::chrono::milliseconds(10));
  }
  json pieces = json::array();
  size_t room = reach::kPiece;
  bool more = false;
  const size_t share =
      std::max(kSmallestShare, room / std::max<size_t>(1, news.size()));
  for (const News& one : news) {
    const size_t wanted = std::min<uint64_t>({one.left, share, room});
    more |= wanted < one.left;
    if (wanted == 0) {
      continue;
    }
    LOCKSTEP_ASSIGN(
        json::binary_t data,
        read_piece(run.path() / one.name, one.offset, wanted));
    room -= data.size();
    pieces.push_back(
        {{"name", one.name},
         {"offset", one.offset},
         {"data", std::move(data)}});
  }
  return json{
      {"state", std::move(state)},
      {"pieces", std::move(pieces)},
      {"more", more}};
}

Result<json> tell_state(const json& request) {
  LOCKSTEP_ASSIGN(const record::RunDirectory run, directory_of(request));
  LOCKSTEP_ASSIGN(const RunStateFile state, state_of(run));
  return json{{"state", to_json(state)}, {"step", last_step(run)}};
}

// Names of temporary files and of secrets start with a point.
Result<json> list_files(const json& request) {
  LOCKSTEP_ASSIGN(const record::RunDirectory run, directory_of(request));
  json files = json::array();
  std::error_code error;
  for (auto entry = fs::recursive_directory_iterator(run.path(), error);
       !error && entry != fs::recursive_directory_iterator();
       entry.increment(error)) {
    const std::string name =
        entry->path().lexically_relative(run.path()).string();
    struct stat facts{};
    if (entry->path().filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
    } else if (
        ::stat(entry->path().c_str(), &facts) == 0 && S_ISREG(facts.st_mode) &&
        !name.starts_with("state.json")) {
      files.push_back(
          {{"name", name},
           {"size", static_cast<uint64_t>(facts.st_size)},
           {"time",
            static_cast<int64_t>(facts.st_mtim.tv_sec) * 1'000'000'000 +
                facts.st_mtim.tv_nsec}});
    }
  }
  if (error) {
    return Error(
        ErrorCode::kIo,
        fmt::format(
            "cannot list {}: {}", run.path().string(), error.message()));
  }
  return json{{"files", std::move(files)}};
}

Result<json> fetch(const json& request) {
  LOCKSTEP_ASSIGN(const record::RunDirectory run, directory_of(request));
  const std::string name = request.at("name").get<std::string>();
  if (!is_plain_name(name)) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("'{}' is no name of a file", name));
  }
  const os::Path path = run.path() / name;
  LOCKSTEP_ASSIGN(
      json::binary_t data,
      read_piece(path, request.value("offset", uint64_t{0}), reach::kPiece));
  return json{{"data", std::move(data)}, {"size", size_of(path)}};
}

Result<json> stop(const json& request) {
  LOCKSTEP_ASSIGN(const record::RunDirectory run, directory_of(request));
  LOCKSTEP_ASSIGN(const RunStateFile state, state_of(run));
  bool running = false;
  if (state.is_running()) {
    LOCKSTEP_ASSIGN(running, signal_run(state, request.value("now", false)));
  }
  return json{{"running", running}};
}

Result<json> renting(const json& request) {
  LOCKSTEP_ASSIGN(const record::RunDirectory run, directory_of(request));
  LOCKSTEP_ASSIGN(const bool client, client_rents(run));
  return json{{"client", client}};
}

// Of a node, never a run directory of a head: that is the record itself.
Result<json> forget(const json& request) {
  const os::Path folder = request.at("directory").get<std::string>();
  if (!folder.is_absolute() || folder.lexically_normal() != folder ||
      folder.parent_path().filename() != "nodes" || !folder.has_filename()) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format("{} is no folder of a node", folder.string()));
  }
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) {
    return Error(
        ErrorCode::kIo,
        fmt::format("cannot remove {}: {}", folder.string(), error.message()));
  }
  return json::object();
}

}  // namespace

std::vector<std::string> followed_files(const record::RunDirectory& run) {
  std::vector<std::string> names = {
      "console.jsonl", "events.jsonl", "timing.csv"};
  const auto found = os::real_files().list(run.path() / "ranks");
  if (found) {
    for (const std::string& name : *found) {
      if (name.ends_with(".log") && !name.starts_with('.')) {
        names.push_back("ranks/" + name);
      }
    }
  }
  return names;
}

bool is_plain_name(const std::string& name) {
  const os::Path path(name);
  return !name.empty() && path.is_relative() &&
         name.find('\0') == std::string::npos &&
         std::ranges::none_of(path, [](const os::Path& part) {
           return part.empty() || part.string().starts_with('.');
         });
}

reach::Handlers run_verbs() {
  return {
      {"state", tell_state},
      {"tail", tail},
      {"files", list_files},
      {"fetch", fetch},
      {"stop", stop},
      {"renting", renting},
      {"forget", forget}};
}

}  // namespace lockstep::launch
