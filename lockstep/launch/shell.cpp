#include "lockstep/launch/shell.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "lockstep/os/clock.h"
#include "lockstep/os/descriptor.h"
#include "lockstep/os/process.h"

namespace lockstep::launch {

std::string shell_word(const std::string& word) {
  const bool plain =
      !word.empty() && word.find_first_not_of(
                           "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXY"
                           "Z0123456789_-+=./:,@%") == std::string::npos;
  if (plain) {
    return word;
  }
  std::string text = "'";
  for (const char c : word) {
    text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  }
  return text + "'";
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    line += (line.empty() ? "" : " ") + shell_word(word);
  }
  return line;
}

std::string find_in_path(const std::string& name) {
  const auto variables = os::environment();
  const auto path = variables.find("PATH");
  std::string rest = path == variables.end() ? "/usr/bin:/bin" : path->second;
  while (!rest.empty()) {
    const size_t colon = rest.find(':');
    const std::string file = rest.substr(0, colon) + "/" + name;
    if (::access(file.c_str(), X_OK) == 0) {
      return file;
    }
    rest = colon == std::string::npos ? "" : rest.substr(colon + 1);
  }
  return "";
}

Result<std::string> capture(
    const std::vector<std::string>& argv,
    Duration patience) {
  const os::Descriptor file(::memfd_create("capture", MFD_CLOEXEC));
  if (!file) {
    return os_error("cannot make a file in memory", errno);
  }
  os::SpawnOptions options;
  options.argv = argv;
  options.environment = os::environment();
  options.output = fmt::format("/proc/{}/fd/{}", ::getpid(), file.get());
  LOCKSTEP_ASSIGN(auto process, os::real_processes().spawn(options));
  const auto status = process->wait(os::Deadline::after(patience));
  if (!status) {
    (void)process->signal(SIGKILL).has_value();
    (void)process->wait(os::Deadline::after(patience)).has_value();
    return Error(status.error()).with_context(argv[0]);
  }
  std::string text;
  char block[4096];
  ssize_t size = 0;
  while (
      (size = ::pread(
           file.get(), block, sizeof block, static_cast<off_t>(text.size()))) >
      0) {
    text.append(block, static_cast<size_t>(size));
  }
  while (!text.empty() && text.back() == '\n') {
    text.pop_back();
  }
  if (!status->ok()) {
    return Error(
        ErrorCode::kUnavailable,
        text.empty() ? fmt::format("{}: {}", argv[0], status->to_string())
                     : text);
  }
  return text;
}

}  // namespace lockstep::launch
