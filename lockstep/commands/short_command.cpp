#include "lockstep/commands/short_command.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "lockstep/base/text.h"
#include "lockstep/os/descriptor.h"

namespace lockstep::commands {
namespace {

Result<os::Descriptor> memory_file() {
  os::Descriptor file(::memfd_create("lockstep-command", MFD_CLOEXEC));
  if (!file) {
    return os_error("cannot make a memory file", errno);
  }
  return file;
}

std::string content_of(const os::Descriptor& file) {
  const off_t size = ::lseek(file.get(), 0, SEEK_END);
  std::string text(static_cast<size_t>(std::max<off_t>(0, size)), '\0');
  const ssize_t count = ::pread(file.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return text;
}

std::vector<std::string> spoken(const std::string& text) {
  std::vector<std::string> lines;
  for (const std::string& line : lines_of(text)) {
    if (!trim(line).empty() &&
        !line.starts_with("Warning: Permanently added")) {
      lines.emplace_back(trim(line));
    }
  }
  return lines;
}

}  // namespace

std::string CommandOutput::first_line() const {
  auto lines = spoken(complaints);
  if (lines.empty()) {
    lines = spoken(output);
  }
  return lines.empty() ? status.to_string() : lines.front();
}

std::string CommandOutput::last_line() const {
  auto lines = spoken(complaints);
  if (lines.empty()) {
    lines = spoken(output);
  }
  return lines.empty() ? status.to_string() : lines.back();
}

std::string CommandOutput::last_lines(size_t most) const {
  const auto lines = spoken(output + "\n" + complaints);
  std::string text;
  for (size_t i = lines.size() - std::min(most, lines.size()); i < lines.size();
       ++i) {
    text += (text.empty() ? "" : " | ") + lines[i];
  }
  return text;
}

Result<CommandOutput> run_command(
    const std::vector<std::string>& argv,
    std::string_view input,
    os::Deadline deadline) {
  LOCKSTEP_ASSIGN(const os::Descriptor in, memory_file());
  LOCKSTEP_ASSIGN(const os::Descriptor out, memory_file());
  LOCKSTEP_ASSIGN(const os::Descriptor err, memory_file());
  if (::pwrite(in.get(), input.data(), input.size(), 0) !=
      static_cast<ssize_t>(input.size())) {
    return os_error("cannot write a memory file", errno);
  }
  os::SpawnOptions options;
  options.argv = argv;
  options.environment = os::environment();
  options.die_with_parent = true;
  options.standard = {in.get(), out.get(), err.get()};
  LOCKSTEP_ASSIGN(const auto process, os::real_processes().spawn(options));
  CommandOutput done;
  auto status = process->wait(deadline);
  if (!status) {
    (void)process->signal(SIGKILL).has_value();
    status = process->wait(os::Deadline::after(std::chrono::seconds(5)));
    done.timed_out = true;
  }
  if (status) {
    done.status = *status;
  }
  done.output = content_of(out);
  done.complaints = content_of(err);
  return done;
}

}  // namespace lockstep::commands
