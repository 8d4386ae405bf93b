#include "lockstep/launch/renting.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

#include "lockstep/os/descriptor.h"

namespace lockstep::launch {
namespace {

// One line: "head", or "client SECONDS" of when it was last heard of. What is
// longer of an older line stands behind the newline and counts for nothing, so
// a crash never leaves an empty file.
class Turn {
 public:
  static Result<Turn> take(const record::RunDirectory& run) {
    const os::Path path = run.path() / ".renting";
    Turn turn;
    turn.file_ = os::Descriptor(
        ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!turn.file_ || ::flock(turn.file_.get(), LOCK_EX) != 0) {
      return os_error(fmt::format("cannot lock {}", path.string()), errno);
    }
    char text[64] = {};
    const ssize_t size = ::pread(turn.file_.get(), text, sizeof text - 1, 0);
    if (size < 0) {
      return os_error(fmt::format("cannot read {}", path.string()), errno);
    }
    const std::string line(text, static_cast<size_t>(size));
    turn.line_ = line.substr(0, line.find('\n'));
    return turn;
  }

  bool is_heads() const { return line_ == "head"; }
  // Unix seconds; 0: it was never heard of.
  double heard() const {
    constexpr std::string_view kClient = "client ";
    return line_.starts_with(kClient)
               ? std::atof(line_.c_str() + kClient.size())
               : 0;
  }
  Result<void> write(const std::string& line) const {
    const std::string text = line + "\n";
    if (::pwrite(file_.get(), text.data(), text.size(), 0) !=
        static_cast<ssize_t>(text.size())) {
      return os_error("cannot write .renting", errno);
    }
    return {};
  }

 private:
  os::Descriptor file_;  // its lock ends with it
  std::string line_;
};

std::string heard_at(double now) {
  return fmt::format("client {:.3f}", now);
}

}  // namespace

Result<bool> client_rents(
    const record::RunDirectory& run,
    const os::Clock& clock) {
  LOCKSTEP_ASSIGN(const Turn turn, Turn::take(run));
  if (turn.is_heads()) {
    return false;
  }
  LOCKSTEP_TRY(turn.write(heard_at(clock.unix_seconds())));
  return true;
}

Result<bool> head_rents(
    const record::RunDirectory& run,
    Duration away,
    const os::Clock& clock) {
  LOCKSTEP_ASSIGN(const Turn turn, Turn::take(run));
  if (turn.is_heads()) {
    return true;
  }
  const double now = clock.unix_seconds();
  if (turn.heard() <= 0 || turn.heard() > now) {
    LOCKSTEP_TRY(turn.write(heard_at(now)));
    return false;
  }
  if (now - turn.heard() <= to_seconds(away)) {
    return false;
  }
  LOCKSTEP_TRY(turn.write("head"));
  return true;
}

}  // namespace lockstep::launch
