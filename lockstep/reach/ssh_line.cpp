#include "lockstep/reach/ssh_line.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "lockstep/reach/stream.h"

namespace lockstep::reach {
namespace {

using std::chrono::seconds;

constexpr size_t kLongestGreeting = 1 << 20;  // what login scripts print

}  // namespace

std::string SshLine::words() const {
  std::string text(
      static_cast<size_t>(
          std::max<off_t>(0, ::lseek(complaints.get(), 0, SEEK_END))),
      '\0');
  const ssize_t count = ::pread(complaints.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

void SshLine::end(Duration patience) {
  stream->close();
  if (!process->wait(os::Deadline::after(patience))) {
    (void)process->signal(SIGKILL).has_value();
    (void)process->wait(os::Deadline::after(seconds(5))).has_value();
  }
}

Result<SshLine> start_ssh(
    const std::string& host,
    const std::vector<std::string>& command,
    bool batch) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    return os_error("cannot make a socket pair", errno);
  }
  os::Descriptor ours(ends[0]);
  const os::Descriptor theirs(ends[1]);
  SshLine line;
  line.complaints = os::Descriptor(::memfd_create("lockstep-ssh", MFD_CLOEXEC));
  if (!line.complaints) {
    return os_error("cannot make a memory file", errno);
  }
  os::SpawnOptions options;
  options.argv = command;
  options.environment = os::environment();
  // A person is asked through the terminal, which only its foreground group
  // may read; there Ctrl-C is for us.
  options.new_group = batch;
  options.ignore_interrupts = !batch;
  options.standard = {theirs.get(), theirs.get(), line.complaints.get()};
  auto process = os::real_processes().spawn(options);
  if (!process) {
    Error error = std::move(process.error());
    if (error.code() == ErrorCode::kNotFound) {
      return std::move(error).with_fix(
          "apt-get install openssh-client, or set LOCKSTEP_SSH");
    }
    return error;
  }
  line.process = std::move(*process);
  line.stream = make_stream(std::move(ours), host);
  return line;
}

Result<std::string>
read_marked(SshLine& line, const std::string& mark, os::Deadline deadline) {
  std::string text;
  size_t found = std::string::npos;
  while (text.size() < kLongestGreeting) {
    std::byte byte{};
    LOCKSTEP_TRY(line.stream->read_all({&byte, 1}, deadline));
    text += static_cast<char>(byte);
    if (found == std::string::npos && text.ends_with(mark)) {
      found = text.size();
    } else if (found != std::string::npos && text.back() == '\n') {
      text.pop_back();
      return text.substr(std::min(found + 1, text.size()));
    }
  }
  return Error(
      ErrorCode::kUnavailable,
      "its login scripts print more than lockstep reads");
}

}  // namespace lockstep::reach
