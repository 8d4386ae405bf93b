#include "lockstep/launch/mpi.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "lockstep/launch/shell.h"

namespace lockstep::launch {
namespace {

namespace fs = std::filesystem;

Result<void>
write_file(const os::Path& path, const std::string& text, unsigned mode) {
  LOCKSTEP_TRY(os::real_files().write_atomic(path, text));
  if (::chmod(path.c_str(), mode) != 0) {
    return os_error(fmt::format("cannot change {}", path.string()), errno);
  }
  return {};
}

class MpiStarter : public ShimStarter {
 public:
  explicit MpiStarter(MpiOptions options) : options_(std::move(options)) {}

  std::string name() const override { return "mpirun"; }

  Result<os::SpawnOptions> command(
      const RankPlan& plan,
      const std::vector<size_t>& ranks,
      const std::string& shim_spec) override {
    std::error_code ignored;
    fs::create_directories(options_.folder, ignored);
    if (!options_.is_local) {
      LOCKSTEP_TRY(write_file(
          options_.folder / "hostfile", mpi_hostfile(plan, ranks), 0644));
    }
    os::SpawnOptions spawn;
    spawn.argv = {"mpirun"};
    std::ranges::move(
        mpirun_arguments(options_, ranks.size()),
        std::back_inserter(spawn.argv));
    spawn.argv.push_back(options_.program.string());
    spawn.argv.insert(spawn.argv.end(), {"shim", "--"});
    spawn.environment = without_launchers(os::environment());
    spawn.environment["LOCKSTEP_SHIM"] = shim_spec;
    return spawn;
  }

  bool answers(const std::string& host) override {
    constexpr auto kPatience = std::chrono::seconds(10);
    return options_.is_local ||
           capture(
               {"sh", "-c", options_.agent + " " + shell_word(host) + " true"},
               kPatience)
               .has_value();
  }

 private:
  const MpiOptions options_;
};

}  // namespace

std::string mpi_hostfile(
    const RankPlan& plan,
    const std::vector<size_t>& ranks) {
  std::map<int, int> slots;  // by node
  for (const size_t rank : ranks) {
    ++slots[plan.slots.at(rank).node];
  }
  std::string text;
  for (const auto& [node, count] : slots) {
    text += fmt::format(
        "{} slots={}\n", plan.nodes.at(static_cast<size_t>(node)).host, count);
  }
  return text;
}

std::string rsh_agent(
    const Environment& environment,
    const std::vector<std::string>& more) {
  const auto word = [&](const char* name, const char* otherwise) {
    const auto found = environment.find(name);
    return found == environment.end() || found->second.empty() ? otherwise
                                                               : found->second;
  };
  // Of several values for ssh the first counts: the user's.
  return fmt::format(
      "{} {} {} -o BatchMode=yes -o ConnectTimeout=10 "
      "-o ServerAliveInterval=1 -o ServerAliveCountMax=5",
      word("LOCKSTEP_SSH", "ssh"),
      word("LOCKSTEP_SSH_OPTIONS", ""),
      fmt::join(more, " "));
}

std::vector<std::string> mpirun_arguments(
    const MpiOptions& options,
    size_t ranks) {
  std::vector<std::string> words;
  const auto add = [&](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  if (options.is_root) {
    add({"--allow-run-as-root"});
  }
  if (options.is_local) {
    add({"--oversubscribe"});
  } else {
    add({"--hostfile", (options.folder / "hostfile").string()});
    add({"--mca", "plm_rsh_agent", options.agent});
    // Hosts need not reach each other by ssh.
    add({"--mca", "plm_rsh_no_tree_spawn", "1"});
    // A daemon on a host that was cut off ends by itself.
    add({"--mca", "oob_tcp_keepalive_time", "5"});
    add({"--mca", "oob_tcp_keepalive_intvl", "2"});
    add({"--mca", "oob_tcp_keepalive_probes", "3"});
  }
  // Ranks node by node, as the plan numbers them; threads are counted by
  // OMP_NUM_THREADS, not by binding.
  add({"--map-by", "slot", "--bind-to", "none"});
  add({"-np", std::to_string(ranks), "-x", "LOCKSTEP_SHIM"});
  words.insert(words.end(), options.more.begin(), options.more.end());
  return words;
}

Result<std::unique_ptr<ShimStarter>> make_mpi_starter(MpiOptions options) {
  if (find_in_path("mpirun").empty()) {
    return Error(ErrorCode::kNotFound, "mpirun is not installed here")
        .with_fix("apt-get install openmpi-bin, or use --launcher ssh");
  }
  return std::make_unique<MpiStarter>(std::move(options));
}

}  // namespace lockstep::launch
