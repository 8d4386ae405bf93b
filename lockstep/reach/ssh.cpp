#include "lockstep/reach/ssh.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdlib>

#include "lockstep/reach/content.h"

namespace lockstep::reach {
namespace {

// A socket's path has 107 bytes: %C takes 40, ssh itself 17 while it makes it,
// ours a dash and 8.
constexpr size_t kLongestFolder = 40;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> words_in(const std::string& text) {
  std::vector<std::string> words;
  size_t start = 0;
  while ((start = text.find_first_not_of(" \t", start)) != std::string::npos) {
    const size_t end = std::min(text.find_first_of(" \t", start), text.size());
    words.push_back(text.substr(start, end - start));
    start = end;
  }
  return words;
}

// A folder that nobody else can write to.
Result<os::Path> private_folder(os::Path folder) {
  if (folder.empty() || folder.string().size() > kLongestFolder) {
    const std::string runtime = variable("XDG_RUNTIME_DIR");
    folder = os::Path(runtime) / "lockstep";
    if (runtime.empty() || ::access(runtime.c_str(), W_OK) != 0 ||
        folder.string().size() > kLongestFolder) {
      folder = fmt::format("/tmp/lockstep-{}", ::getuid());
    }
  }
  std::error_code error;
  std::filesystem::create_directories(folder.parent_path(), error);
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return os_error(
        fmt::format("cannot make folder {}", folder.string()), errno);
  }
  struct stat facts{};
  if (::lstat(folder.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode) ||
      facts.st_uid != ::getuid() || (facts.st_mode & 077) != 0) {
    return Error(
               ErrorCode::kPermission,
               fmt::format(
                   "{} is not a private folder of yours", folder.string()))
        .with_fix(
            "remove it, or set XDG_RUNTIME_DIR to a folder that only you can "
            "use");
  }
  return folder;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// The line that holds `part`; else the last that says something.
std::string line_with(const std::string& text, std::string_view part) {
  std::string last;
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = std::min(text.find('\n', start), text.size());
    std::string line = text.substr(start, end - start);
    start = end + 1;
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) {
      line.pop_back();
    }
    if (line.empty() || line.starts_with("Warning: Permanently added")) {
      continue;
    }
    if (!part.empty() && has(line, part)) {
      return line;
    }
    last = line;
  }
  return last;
}

struct Meaning {
  std::string_view part;  // of what ssh said
  ErrorCode code;
  const char* what;
  const char* fix;  // {0} is the host
};

constexpr const char* kHomeFix =
    "free some room there, or set LOCKSTEP_FAR_HOME to a folder on {0} that "
    "has it";
constexpr const char* kPlaceFix =
    "set LOCKSTEP_FAR_HOME to a folder on {0} that you can write to and run "
    "programs from";

// In the order of how much they tell.
constexpr Meaning kConnecting[] = {
    {"Could not resolve hostname",
     ErrorCode::kUnavailable,
     "the host is not known",
     "check its name, or give it an address in ~/.ssh/config"},
    {"REMOTE HOST IDENTIFICATION HAS CHANGED",
     ErrorCode::kUnavailable,
     "its host key is not the one that is known",
     "if the host was set up anew, forget the old key with 'ssh-keygen -R {0}' "
     "and connect once with 'ssh {0}'"},
    {"Host key verification failed",
     ErrorCode::kUnavailable,
     "its host key is not known here",
     "connect once by hand with 'ssh {0}' and check the key"},
    {"Permission denied",
     ErrorCode::kUnavailable,
     "the log-in was refused",
     "try 'ssh {0}'; put your key there with 'ssh-copy-id {0}', start "
     "ssh-agent, or name the user as user@host"},
    {"Too many authentication failures",
     ErrorCode::kUnavailable,
     "the log-in was refused",
     "name one key for this host: IdentityFile and IdentitiesOnly in "
     "~/.ssh/config"},
    {"Connection refused",
     ErrorCode::kUnavailable,
     "nobody listens there",
     "is sshd running on {0}, and on this port?"},
    {"timed out",
     ErrorCode::kUnavailable,
     "no answer",
     "is {0} on, and does a firewall let ssh through?"},
    {"No route to host",
     ErrorCode::kUnavailable,
     "the network does not reach it",
     "is {0} on, and in this network?"},
    {"Network is unreachable",
     ErrorCode::kUnavailable,
     "the network does not reach it",
     "is this machine connected?"},
    {"Bad configuration option",
     ErrorCode::kInvalidInput,
     "ssh does not take its options",
     "correct ~/.ssh/config, LOCKSTEP_SSH_OPTIONS or resources.ssh_options"},
    {"Bad owner or permissions",
     ErrorCode::kUnavailable,
     "ssh does not take its configuration",
     "correct the mode of the file that it names"},
};

constexpr Meaning kPlacing[] = {
    {"No space left on device",
     ErrorCode::kUnavailable,
     "no space for lockstep",
     kHomeFix},
    {"Disk quota exceeded",
     ErrorCode::kUnavailable,
     "no space for lockstep",
     kHomeFix},
    {"Read-only file system",
     ErrorCode::kUnavailable,
     "its home is read-only",
     kPlaceFix},
    {"Permission denied",
     ErrorCode::kUnavailable,
     "its home cannot be written to",
     kPlaceFix},
    {"Not a directory",
     ErrorCode::kUnavailable,
     "its home cannot be written to",
     kPlaceFix},
};

constexpr Meaning kStarting[] = {
    {"GLIBC",
     ErrorCode::kUnavailable,
     "its libc is older than that of this lockstep",
     "build lockstep on the oldest system among the hosts"},
    {"ermission denied",
     ErrorCode::kUnavailable,
     "programs cannot be run from its home",
     kPlaceFix},
    {"Exec format error",
     ErrorCode::kUnavailable,
     "it cannot run this lockstep",
     "all hosts of a run need the architecture of this machine"},
    {"not found",
     ErrorCode::kUnavailable,
     "it cannot run this lockstep",
     "it needs a GNU libc; build lockstep on the oldest system among the "
     "hosts"},
};

template <size_t N>
const Meaning* find(const Meaning (&meanings)[N], const std::string& words) {
  const auto found = std::ranges::find_if(
      meanings, [&](const Meaning& one) { return has(words, one.part); });
  return found == std::end(meanings) ? nullptr : &*found;
}

Error say(
    const std::string& host,
    const Meaning& meaning,
    const std::string& words) {
  Error error(
      meaning.code,
      fmt::format(
          "{}: {} ({})", host, meaning.what, line_with(words, meaning.part)));
  std::string fix = fmt::format(fmt::runtime(meaning.fix), host);
  if (meaning.part == "timed out" || meaning.part == "Connection refused") {
    return std::move(error).with_retry().with_fix(std::move(fix));
  }
  return std::move(error).with_fix(std::move(fix));
}

}  // namespace

Result<std::vector<std::string>> ssh_command(
    const ReachOptions& options,
    bool batch) {
  const std::string named = variable("LOCKSTEP_SSH");
  std::vector<std::string> command = {named.empty() ? "ssh" : named};
  // For ssh the first value of an option counts, so the user's stand first.
  std::vector<std::string> theirs = options.ssh_options;
  for (const std::string& word : words_in(variable("LOCKSTEP_SSH_OPTIONS"))) {
    theirs.push_back(word);
  }
  command.insert(command.end(), theirs.begin(), theirs.end());
  LOCKSTEP_ASSIGN(
      const os::Path folder, private_folder(options.control_folder));
  // Other options may lead elsewhere under the same name.
  std::string kind = command.front() + "\n" + variable("HOME");
  for (const std::string& word : theirs) {
    kind += "\n" + word;
  }
  const std::string socket =
      fmt::format("{}/%C-{}", folder.string(), sha256_of(kind).substr(0, 8));
  for (const std::string& option : {
           std::string("ControlMaster=auto"),
           std::string("ControlPersist=60"),
           "ControlPath=" + socket,
           std::string("ConnectTimeout=10"),
           std::string("ServerAliveInterval=2"),
           std::string("ServerAliveCountMax=3"),
           fmt::format("BatchMode={}", batch ? "yes" : "no"),
       }) {
    command.emplace_back("-o");
    command.push_back(option);
  }
  command.emplace_back("-T");
  return command;
}

Result<std::string> bootstrap_command(const Bootstrap& bootstrap) {
  std::string home = bootstrap.far_home;
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("/._+-,@~").find(c) != std::string_view::npos;
  };
  if (!std::ranges::all_of(home, plain)) {
    return Error(
        ErrorCode::kInvalidInput,
        fmt::format(
            "LOCKSTEP_FAR_HOME: '{}' has a character other than letters, "
            "digits and /._+-,@~",
            home));
  }
  if (home.empty()) {
    home = "$HOME/.cache/lockstep";
  } else if (home == "~" || home.starts_with("~/")) {
    home = "$HOME" + home.substr(1);
  }
  // Login shells differ: one line, in single quotes, without single quotes,
  // backslashes or exclamation marks, is the same to all of them. Only what
  // can fail speaks English, so that ranks keep their locale.
  return fmt::format(
      "exec /bin/sh -c '"
      "LOCKSTEP_HOME=${{LOCKSTEP_HOME:-{0}}}; export LOCKSTEP_HOME; "
      "d=$LOCKSTEP_HOME/bin/{1}; p=$d/lockstep; t=$d/.{2}; "
      "if [ -x \"$p\" ]; then echo {2} here; exec \"$p\" far-end; fi; "
      "z=raw; if command -v gzip >/dev/null 2>&1; then z=gzip; fi; "
      "echo {2} absent `uname -m` $z; read n || exit 1; "
      "if LC_ALL=C mkdir -p \"$d\" && "
      "if [ $z = gzip ]; then head -c $n | LC_ALL=C gzip -dc >\"$t\"; "
      "else LC_ALL=C head -c $n >\"$t\"; fi && "
      "chmod 700 \"$t\" && LC_ALL=C mv -f \"$t\" \"$p\"; "
      "then echo {2} sent; exec \"$p\" far-end; fi; "
      "rm -f \"$t\"; echo {2} failed; exit 1'",
      home,
      bootstrap.hash,
      bootstrap.mark);
}

Error explain_failure(
    const std::string& host,
    Stage stage,
    const std::string& words) {
  const Meaning* meaning = stage == Stage::kPlace   ? find(kPlacing, words)
                           : stage == Stage::kStart ? find(kStarting, words)
                                                    : nullptr;
  if (meaning == nullptr && stage != Stage::kStart) {
    meaning = find(kConnecting, words);
  }
  if (meaning != nullptr) {
    return say(host, *meaning, words);
  }
  const std::string line = line_with(words, "");
  const char* what = stage == Stage::kConnect ? "ssh could not connect"
                     : stage == Stage::kPlace ? "lockstep could not be sent"
                     : stage == Stage::kStart ? "lockstep did not start there"
                                              : "the ssh session ended";
  Error error(
      ErrorCode::kUnavailable,
      line.empty() ? fmt::format("{}: {}", host, what)
                   : fmt::format("{}: {} ({})", host, what, line));
  if (stage == Stage::kTalk) {
    return std::move(error).with_retry();
  }
  return std::move(error).with_fix(
      fmt::format("'ssh {} true' must work without a word", host));
}

bool is_passing(const std::string& words) {
  return has(words, "kex_exchange_identification") ||
         has(words, "mux_client") || has(words, "Control socket connect") ||
         has(words, "Connection closed by UNKNOWN");
}

bool needs_person(const std::string& words) {
  return (has(words, "Permission denied") ||
          has(words, "Host key verification failed")) &&
         !has(words, "IDENTIFICATION HAS CHANGED");
}

}  // namespace lockstep::reach
