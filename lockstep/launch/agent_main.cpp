#include "lockstep/launch/agent_main.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "lockstep/base/log.h"
#include "lockstep/base/to_stderr.h"
#include "lockstep/launch/agent_loop.h"
#include "lockstep/launch/local_agent.h"
#include "lockstep/launch/stop_signals.h"
#include "lockstep/wire/handshake.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kShimVariable = "LOCKSTEP_SHIM";
constexpr size_t kLongestSpec = 1 << 20;

Error bad_spec(const std::string& what) {
  return Error(
      ErrorCode::kInvalidInput,
      fmt::format("the description of the agent {}", what));
}

// Device files, not NVML: an agent must stay small.
int count_gpus() {
  int count = 0;
  while (count < 64 &&
         ::access(fmt::format("/dev/nvidia{}", count).c_str(), F_OK) == 0) {
    ++count;
  }
  return count;
}

Result<void> make_folder(const os::Path& folder) {
  LOCKSTEP_TRY(os::real_files().make_directories(folder / "ranks"));
  ::chmod(folder.c_str(), 0700);
  return {};
}

AgentLoopOptions loop_options(
    const AgentSpec& spec,
    const Key& key,
    const os::Path& own_program,
    StopSignals& signals) {
  AgentLoopOptions options;
  options.key = key;
  options.join.node = spec.node;
  options.join.host = host_name();
  options.join.cores = own_cores();
  options.join.gpus = count_gpus();
  options.head_addresses = spec.head_addresses;
  options.make_agent = [own_program] { return start_local_agent(own_program); };
  options.stop_descriptor = signals.descriptor();
  options.on_stop = [&signals] { return signals.take(); };
  return options;
}

// The other end reads this line and nothing else.
void say_joined(const Result<void>& result) {
  std::string text =
      result ? "joined" : "failed: " + result.error().to_string();
  std::ranges::replace(text, '\n', ' ');
  std::puts(text.c_str());
  std::fflush(stdout);
}

// Whoever reads that line is gone.
bool is_unheard() {
  pollfd out{STDOUT_FILENO, 0, 0};
  return ::poll(&out, 1, 0) > 0 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

// Closes the standard streams; what is logged from now on is kept beside the
// ranks' files.
void leave_streams(const os::Path& folder) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  const int log = ::open(
      (folder / "agent.log").c_str(),
      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
      0600);
  ::dup2(null, STDIN_FILENO);
  ::dup2(null, STDOUT_FILENO);
  ::dup2(log >= 0 ? log : null, STDERR_FILENO);
}

// The head has all logs and events of a run that was said good-bye to; what
// programs themselves left in the folder stays.
void clean_folder(const os::Path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder / "ranks", ignored)) {
    const os::Path extension = entry.path().extension();
    if (extension == ".log" || extension == ".jsonl") {
      fs::remove(entry.path(), ignored);
    }
  }
  fs::remove_all(folder / "python", ignored);  // our module, and its cache
  for (const char* name : {".key", "agent.pid", "agent.log", "ranks"}) {
    fs::remove(folder / name, ignored);
  }
  fs::remove(folder, ignored);  // when nothing else is in it
}

int run_agent(
    const AgentSpec& spec,
    const Key& key,
    const os::Path& own_program,
    const NoticeMaker& notices,
    os::Descriptor parent) {
  ::setsid();
  ::signal(SIGHUP, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_NAME, "lockstep-agent");
  StopSignals signals;
  AgentLoopOptions options = loop_options(spec, key, own_program, signals);
  if (spec.spot && notices) {
    options.notice = notices();
  }
  const auto tell = [&](const Result<void>& result) {
    say_joined(result);
    leave_streams(spec.folder);
    const char code = result ? 0 : 1;
    (void)!::write(parent.get(), &code, 1);
    parent.reset();
  };
  Result<void> ready = make_folder(spec.folder);
  if (ready) {
    ready = wire::write_key_file((spec.folder / ".key").string(), key);
  }
  if (ready) {
    ready = os::real_files().write_atomic(
        spec.folder / "agent.pid", std::to_string(::getpid()) + "\n");
  }
  if (!ready) {
    tell(ready);
    return 1;
  }
  options.on_joined = tell;
  options.is_abandoned = is_unheard;
  const auto end = run_agent_loop(std::move(options));
  if (!end) {
    log_error(end.error().to_string());
    return 1;
  }
  if (end->said_bye) {
    clean_folder(spec.folder);
  } else {
    std::error_code ignored;
    fs::remove(spec.folder / ".key", ignored);
  }
  return 0;
}

std::string read_standard_input() {
  std::string text;
  char block[4096];
  ssize_t size = 0;
  while (text.size() < kLongestSpec &&
         ((size = ::read(STDIN_FILENO, block, sizeof block)) > 0 ||
          (size < 0 && errno == EINTR))) {
    text.append(block, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }
  return text;
}

Result<int> rank_of_launcher() {
  for (const char* name :
       {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"}) {
    const char* text = std::getenv(name);
    if (text == nullptr) {
      continue;
    }
    const std::string_view view(text);
    int rank = -1;
    const auto [end, error] =
        std::from_chars(view.data(), view.data() + view.size(), rank);
    if (error != std::errc() || end != view.data() + view.size() || rank < 0) {
      return Error(
          ErrorCode::kInvalidInput,
          fmt::format("{}={} is not a rank", name, text));
    }
    return rank;
  }
  return Error(
             ErrorCode::kInvalidInput,
             "a shim needs OMPI_COMM_WORLD_RANK, PMIX_RANK, PMI_RANK or "
             "SLURM_PROCID")
      .with_fix("'lockstep run --launcher mpi' or 'slurm' starts it");
}

struct Shim {
  AgentSpec spec;
  Key key{};
  os::Path key_file;
};

Result<Shim> read_shim() {
  const char* text = std::getenv(kShimVariable);
  if (text == nullptr) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format("a shim needs {} in its environment", kShimVariable))
        .with_fix("'lockstep run --launcher mpi' or 'slurm' starts it");
  }
  Shim shim;
  LOCKSTEP_ASSIGN(shim.spec, parse_agent_spec(text));
  ::unsetenv(kShimVariable);  // it holds the key
  LOCKSTEP_ASSIGN(shim.spec.node, rank_of_launcher());
  from_hex(shim.spec.key, shim.key);
  LOCKSTEP_TRY(make_folder(shim.spec.folder));
  // Of its own: shims of a node come and go at different times.
  shim.key_file =
      shim.spec.folder / fmt::format(".key-{}-{}", shim.spec.node, ::getpid());
  LOCKSTEP_TRY(wire::write_key_file(shim.key_file.string(), shim.key));
  return shim;
}

// The files of this shim's rank; the last shim of a node takes the folder
// along, unless programs put something there.
void clean_after(const Shim& shim, const std::vector<os::Path>& files) {
  std::error_code ignored;
  for (const os::Path& file : files) {
    fs::remove(file, ignored);
  }
  const os::Path& folder = shim.spec.folder;
  std::vector<os::Path> ours;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name == "ranks") {
      continue;
    }
    // The Python module, and the id of an image that was built here.
    if (name != "python" && !name.starts_with("image-")) {
      return;
    }
    ours.push_back(entry.path());
  }
  if (fs::remove(folder / "ranks", ignored)) {  // no other shim's are there
    for (const os::Path& path : ours) {
      fs::remove_all(path, ignored);
    }
    fs::remove(folder, ignored);
  }
}

// Without the head there is no mpirun either: Open MPI's daemon, which serves
// that one alone, would wait on this host for as long as it is cut off.
void end_lonely_daemon() {
  const pid_t parent = ::getppid();
  const os::Descriptor daemon(
      static_cast<int>(::syscall(SYS_pidfd_open, parent, 0)));
  const auto name = os::real_files().read(fmt::format("/proc/{}/comm", parent));
  if (daemon && name && *name == "orted\n" && ::getppid() == parent) {
    ::syscall(SYS_pidfd_send_signal, daemon.get(), SIGTERM, nullptr, 0);
  }
}

}  // namespace

Result<AgentSpec> parse_agent_spec(const std::string& text) {
  const json map = json::parse(text, nullptr, false);
  if (!map.is_object()) {
    return bad_spec("is not a JSON object");
  }
  AgentSpec spec;
  const auto take = [&map](const char* key, std::string& value) {
    const auto found = map.find(key);
    if (found == map.end() || !found->is_string()) {
      return false;
    }
    value = found->get<std::string>();
    return !value.empty();
  };
  std::string folder;
  for (const auto& [key, value] :
       {std::pair{"run_id", &spec.run_id},
        std::pair{"key", &spec.key},
        std::pair{"folder", &folder}}) {
    if (!take(key, *value)) {
      return bad_spec(fmt::format("has no text '{}'", key));
    }
  }
  Key key{};
  if (!from_hex(spec.key, key)) {
    return bad_spec("has a 'key' that is not 64 hexadecimal digits");
  }
  spec.folder = folder;
  if (!spec.folder.is_absolute()) {
    return bad_spec(fmt::format("has the relative 'folder' {}", folder));
  }
  const auto node = map.find("node");
  if (node != map.end() && !node->is_number_unsigned()) {
    return bad_spec("has a 'node' that is not a number from 0");
  }
  spec.node = node == map.end() ? 0 : node->get<int>();
  const auto spot = map.find("spot");
  spec.spot = spot != map.end() && spot->is_boolean() && spot->get<bool>();
  const auto addresses = map.find("head_addresses");
  if (addresses == map.end() || !addresses->is_array() || addresses->empty()) {
    return bad_spec("has no list 'head_addresses'");
  }
  for (const json& one : *addresses) {
    if (!one.is_string()) {
      return bad_spec("has a 'head_addresses' that is not a list of texts");
    }
    spec.head_addresses.push_back(one.get<std::string>());
  }
  return spec;
}

std::string to_json(const AgentSpec& spec) {
  return json{
      {"run_id", spec.run_id},
      {"key", spec.key},
      {"node", spec.node},
      {"spot", spec.spot},
      {"head_addresses", spec.head_addresses},
      {"folder", spec.folder.string()}}
      .dump();
}

int agent_main(const os::Path& own_program, const NoticeMaker& notices) {
  const auto spec = parse_agent_spec(read_standard_input());
  if (!spec) {
    say_joined(spec.error());
    return 2;
  }
  Key key{};
  from_hex(spec->key, key);
  // A child: the leader of a process group cannot leave its session.
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    say_joined(os_error("cannot make a pipe", errno));
    return 1;
  }
  os::Descriptor from_child(ends[0]);
  os::Descriptor to_parent(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) {
    say_joined(os_error("cannot make a process", errno));
    return 1;
  }
  if (child == 0) {
    from_child.reset();
    return run_agent(*spec, key, own_program, notices, std::move(to_parent));
  }
  to_parent.reset();
  char code = 1;
  while (::read(from_child.get(), &code, 1) < 0 && errno == EINTR) {}
  return code;
}

int shim_main(
    const os::Path& own_program,
    const std::vector<std::string>& argv) {
  const auto shim = read_shim();
  if (!shim) {
    to_stderr("lockstep shim: {}\n", shim.error().to_string());
    return 2;
  }
  ::signal(SIGPIPE, SIG_IGN);
  ::prctl(PR_SET_NAME, "lockstep-shim");
  StopSignals signals;
  AgentLoopOptions options =
      loop_options(shim->spec, shim->key, own_program, signals);
  options.until_idle = true;
  options.make_agent = [&] {
    return start_local_agent(own_program, KeeperEars::kDeaf);
  };
  options.rejoin = std::chrono::seconds(30);
  std::vector<os::Path> files;
  options.adapt = [&](StartRequest& request) {
    for (RankCommand& command : request.commands) {
      // What an earlier shim left there was heard, or never will be.
      for (const os::Path& file : {command.log, command.events}) {
        std::error_code absent;
        fs::remove(file, absent);
        files.push_back(file);
      }
      Environment whole = os::environment();
      for (const auto& [name, value] : command.environment) {
        whole[name] = value;
      }
      whole["LOCKSTEP_KEY_FILE"] = shim->key_file.string();
      command.environment = std::move(whole);
      if (!argv.empty()) {
        command.argv = argv;
      }
    }
  };
  const auto end = run_agent_loop(std::move(options));
  std::error_code ignored;
  fs::remove(shim->key_file, ignored);
  if (end && (end->heard || end->said_bye)) {
    clean_after(*shim, files);
  } else if (end) {
    end_lonely_daemon();
  }
  if (!end) {
    to_stderr("lockstep shim: {}\n", end.error().to_string());
    return 3;
  }
  constexpr int kSignalled = 128;
  return end->status.signal > 0 ? kSignalled + end->status.signal
                                : end->status.code;
}

}  // namespace lockstep::launch
