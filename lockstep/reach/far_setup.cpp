#include "lockstep/reach/far_setup.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lockstep/os/descriptor.h"
#include "lockstep/os/process.h"
#include "lockstep/reach/content.h"
#include "lockstep/reach/far_files.h"
#include "lockstep/reach/message.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMostOutput = 4 << 20;
constexpr Duration kLook = milliseconds(100);

// A folder that was removed and synced anew is set up anew: its inode is part
// of the key.
Result<std::string> key_of(
    const std::string& folder,
    const std::string& command) {
  struct stat facts{};
  if (::stat(folder.c_str(), &facts) != 0) {
    return os_error(fmt::format("cannot enter {}", folder), errno);
  }
  return sha256_of(
      fmt::format(
          "{}\n{}\n{}\n{}",
          folder,
          facts.st_ino,
          folder_record(folder).value("digest", ""),
          command));
}

std::string tail_of(const os::Path& path, size_t most) {
  auto text = os::real_files().read(path);
  if (!text) {
    return "";
  }
  return text->size() <= most ? *text : text->substr(text->size() - most);
}

std::string last_lines(const std::string& text, int count) {
  std::string_view rest(text);
  while (rest.ends_with('\n')) {
    rest.remove_suffix(1);
  }
  size_t end = rest.size();
  for (int line = 0; line < count; ++line) {
    const size_t newline =
        end == 0 ? std::string_view::npos : rest.rfind('\n', end - 1);
    if (newline == std::string_view::npos) {
      return std::string(rest);
    }
    end = newline;
  }
  return std::string(rest.substr(end + 1));
}

Error failed(const std::string& why, const std::string& output) {
  std::string lines = last_lines(output, 3);
  std::ranges::replace(lines, '\n', '|');
  return Error(
             ErrorCode::kAborted,
             lines.empty() ? fmt::format("setup failed: {}", why)
                           : fmt::format("setup failed: {}: {}", why, lines))
      .with_fix("correct the command under 'setup'");
}

// Waits until nobody else runs the same set-up.
Result<os::Descriptor> take_turn(
    const os::Path& path,
    os::Deadline deadline,
    const std::function<bool()>& gone) {
  os::Descriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) {
    return os_error(fmt::format("cannot write {}", path.string()), errno);
  }
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (gone() || deadline.passed()) {
      return Error(
          ErrorCode::kTimeout, "another run still does the same set-up");
    }
    os::real_clock().sleep_for(kLook);
  }
  return lock;
}

}  // namespace

Result<json> run_far_setup(
    const os::Path& home,
    const json& request,
    const std::function<bool()>& gone) {
  LOCKSTEP_ASSIGN(const std::string folder, text_field(request, "folder"));
  LOCKSTEP_ASSIGN(const std::string command, text_field(request, "command"));
  LOCKSTEP_ASSIGN(const uint64_t patience, number_field(request, "patience"));
  const auto deadline = os::Deadline::after(seconds(patience));
  LOCKSTEP_ASSIGN(const std::string key, key_of(folder, command));
  const os::Path place = home / "setup";
  LOCKSTEP_TRY(os::real_files().make_directories(place));
  LOCKSTEP_ASSIGN(
      const os::Descriptor turn,
      take_turn(place / (key + ".lock"), deadline, gone));
  if (os::real_files().exists(place / key)) {
    return json{{"ran", false}, {"output", to_bytes("")}};
  }
  const os::Path log = place / (key + ".log");
  LOCKSTEP_TRY(os::real_files().remove(log));
  os::SpawnOptions options;
  options.argv = {"/bin/sh", "-c", command};
  if (os::real_files().exists("/bin/bash")) {
    options.argv[0] = "/bin/bash";
  }
  options.environment = os::environment();
  options.directory = folder;
  options.output = log;
  options.die_with_parent = true;
  LOCKSTEP_ASSIGN(auto process, os::real_processes().spawn(options));
  while (true) {
    const auto status = process->wait(os::Deadline::after(kLook));
    if (status) {
      const std::string output = tail_of(log, kMostOutput);
      if (!status->ok()) {
        return failed(status->to_string(), output);
      }
      LOCKSTEP_TRY(os::real_files().write_atomic(place / key, command));
      return json{{"ran", true}, {"output", to_bytes(output)}};
    }
    if (gone() || deadline.passed()) {
      (void)process->signal(SIGKILL).has_value();
      (void)process->wait(os::Deadline::after(seconds(5))).has_value();
      return failed(
          fmt::format("not done after {} s", patience),
          tail_of(log, kMostOutput));
    }
  }
}

}  // namespace lockstep::reach
