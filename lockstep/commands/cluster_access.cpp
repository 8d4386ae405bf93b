#include "lockstep/commands/cluster_access.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/log.h"
#include "lockstep/base/nearest.h"
#include "lockstep/base/text.h"
#include "lockstep/commands/cloud_access.h"
#include "lockstep/commands/interruptible.h"
#include "lockstep/commands/short_command.h"

namespace lockstep::commands {
namespace {

namespace fs = std::filesystem;

std::string variable_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

os::Path expand_home(const std::string& path) {
  return path.starts_with("~/") ? variable_of("HOME") + path.substr(1) : path;
}

// "public line" of a private key, by ssh-keygen where no .pub lies beside it.
Result<std::string> public_line_of(const os::Path& key) {
  const os::Path beside = key.string() + ".pub";
  if (os::real_files().exists(beside)) {
    LOCKSTEP_ASSIGN(const std::string text, os::real_files().read(beside));
    return std::string(trim(text));
  }
  LOCKSTEP_ASSIGN(
      const CommandOutput done,
      run_command({"ssh-keygen", "-y", "-P", "", "-f", key.string()}));
  if (!done.status.ok()) {
    return Error(
               ErrorCode::kInvalidInput,
               fmt::format("{}: {}", key.string(), done.first_line()))
        .with_fix("name a private key, and put its .pub beside it");
  }
  return std::string(trim(done.output));
}

Result<void> check_private(const os::Path& key) {
  struct stat facts = {};
  if (::stat(key.c_str(), &facts) != 0) {
    return os_error(fmt::format("key file {}", key.string()), errno);
  }
  if ((facts.st_mode & 077) != 0) {
    return Error(
               ErrorCode::kPermission,
               fmt::format(
                   "key file {} can be read by others (mode {:04o})",
                   key.string(),
                   facts.st_mode & 07777))
        .with_fix(fmt::format("chmod 600 {}", key.string()));
  }
  return {};
}

}  // namespace

os::Path clusters_folder() {
  const std::string state = variable_of("XDG_STATE_HOME");
  const os::Path base = state.empty()
                            ? os::Path(variable_of("HOME")) / ".local" / "state"
                            : os::Path(state);
  return base / "lockstep" / "clusters";
}

std::vector<std::string> known_clusters() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(clusters_folder(), ignored)) {
    if (entry.is_directory(ignored)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(names);
  return names;
}

Result<std::optional<fleet::Cluster>> known_cluster(const std::string& name) {
  LOCKSTEP_ASSIGN(
      const auto steps, fleet::Journal::read(clusters_folder() / name));
  std::optional<fleet::Cluster> cluster;
  for (const fleet::JournalStep& step : steps) {
    if (step.step == "want") {
      LOCKSTEP_ASSIGN(
          cluster,
          fleet::cluster_from_json(
              step.order.value("cluster", nlohmann::json())));
    } else if (step.step == "down" && step.outcome) {
      cluster.reset();
    }
  }
  return cluster;
}

Result<std::unique_ptr<CloudAccess>> open_cloud(
    const std::string& region,
    const Settings& settings) {
  auto access = std::make_unique<CloudAccess>();
  LOCKSTEP_ASSIGN(access->client, open_aws(region));
  access->provider = std::make_unique<cloud::ec2::Ec2>(
      cloud::ec2::Ec2Options{.client = access->client.get(), .region = region});
  access->api = std::make_unique<cloud::ec2::ApiPrices>(*access->client);
  LOCKSTEP_ASSIGN(
      access->mine,
      cloud::UserPrices::parse(
          settings.prices, settings_file().string(), settings.written));
  access->table = cloud::PriceTable::shipped();
  access->book.add(*access->mine);
  access->book.add(*access->api);
  access->book.add(*access->table);
  return access;
}

Result<std::string> region_of(
    const std::optional<fleet::Cluster>& cluster,
    const std::string& option,
    const Settings& settings) {
  std::vector<std::string> named;
  if (!option.empty()) {
    named = {option};
  } else if (cluster && !cluster->region.empty()) {
    named = {cluster->region};
  }
  LOCKSTEP_ASSIGN(const auto regions, chosen_regions(named, settings));
  if (regions.empty()) {
    return Error(ErrorCode::kInvalidInput, "no region is named")
        .with_fix(
            "give 'region' in the cluster file, --region, or set AWS_REGION");
  }
  return regions.front();
}

std::vector<std::string> ClusterShell::ssh() const {
  const std::string named = variable_of("LOCKSTEP_SSH");
  std::vector<std::string> command = {named.empty() ? "ssh" : named};
  std::string word;
  for (const char c : variable_of("LOCKSTEP_SSH_OPTIONS") + " ") {
    if (c != ' ') {
      word += c;
    } else if (!word.empty()) {
      command.push_back(std::move(word));
      word.clear();
    }
  }
  command.insert(command.end(), {"-F", ssh_config_file(folder_).string()});
  for (const char* option :
       {"ControlMaster=no", "ControlPath=none", "ConnectTimeout=10"}) {
    command.insert(command.end(), {"-o", option});
  }
  return command;
}

Result<std::string> ClusterShell::run(
    const fleet::Node& node,
    const std::string& script,
    os::Deadline deadline) {
  std::vector<std::string> command = ssh();
  command.insert(
      command.end(), {"-T", "-o", "BatchMode=yes", node.name, "exec /bin/sh"});
  LOCKSTEP_ASSIGN(
      const CommandOutput done, run_command(command, script, deadline));
  if (done.timed_out) {
    return Error(
        ErrorCode::kUnavailable,
        fmt::format("{}: it took too long", node.name));
  }
  if (done.status.ok()) {
    return done.output;
  }
  constexpr int kSshFailed = 255;
  if (done.status.code == kSshFailed) {
    return Error(
               ErrorCode::kUnavailable,
               fmt::format("{}: {}", node.name, done.last_line()))
        .with_retry();
  }
  return Error(
      ErrorCode::kUnavailable,
      fmt::format("{} there: {}", done.status.to_string(), done.last_lines(5)));
}

os::Path ssh_config_file(const os::Path& folder) {
  return folder / "ssh_config";
}

Result<void> write_ssh_config(
    const os::Path& folder,
    const os::Path& key,
    const std::vector<fleet::Node>& nodes,
    ReachedFrom from) {
  std::string text, names;
  for (const fleet::Node& node : nodes) {
    const std::string& address = from == ReachedFrom::kInside
                                     ? node.instance.private_address
                                     : node.address();
    if (address.empty()) {
      continue;
    }
    text += fmt::format(
        "Host {}\n  HostName {}\n  HostKeyAlias {}\n  User {}\n",
        node.name,
        address,
        node.instance.id,
        node.user.empty() ? "root" : node.user);
    names += " " + node.name;
  }
  if (!names.empty()) {
    text += fmt::format(
        "Host{}\n  IdentityFile \"{}\"\n  IdentitiesOnly yes\n"
        "  UserKnownHostsFile \"{}\"\n  StrictHostKeyChecking accept-new\n"
        "  ServerAliveInterval 10\n  ServerAliveCountMax 3\n",
        names,
        key.string(),
        (folder / "known_hosts").string());
  }
  const os::Path users = os::Path(variable_of("HOME")) / ".ssh" / "config";
  if (os::real_files().exists(users)) {
    text += fmt::format("Host *\n  Include \"{}\"\n", users.string());
  }
  return os::real_files().write_atomic(ssh_config_file(folder), text);
}

os::Path key_file(const fleet::Cluster& cluster, const os::Path& folder) {
  if (cluster.key.empty()) {
    return folder / "key";
  }
  os::Path file = fs::absolute(expand_home(cluster.key));
  if (file.extension() == ".pub") {
    file.replace_extension();
  }
  return file;
}

Result<ClusterKey> cluster_key(
    const fleet::Cluster& cluster,
    const os::Path& folder) {
  ClusterKey key;
  LOCKSTEP_TRY(os::real_files().make_directories(folder));
  key.file = key_file(cluster, folder);
  if (!cluster.key.empty()) {
    LOCKSTEP_TRY(check_private(key.file));
  } else {
    if (!os::real_files().exists(key.file)) {
      LOCKSTEP_ASSIGN(
          const CommandOutput made,
          run_command(
              {"ssh-keygen",
               "-q",
               "-t",
               "ed25519",
               "-N",
               "",
               "-C",
               "lockstep-" + cluster.name,
               "-f",
               key.file.string()}));
      if (!made.status.ok()) {
        return Error(
            ErrorCode::kIo, "no key could be made: " + made.last_line());
      }
    }
  }
  LOCKSTEP_ASSIGN(key.public_line, public_line_of(key.file));
  return key;
}

Result<std::vector<std::string>> ssh_ranges(const fleet::Cluster& cluster) {
  if (!cluster.ssh_from.empty() || !cluster.security_group.empty()) {
    return cluster.ssh_from;
  }
  const std::string named = variable_of("LOCKSTEP_ADDRESS_URL");
  fetch::HttpRequest request;
  request.url = named.empty() ? "https://checkip.amazonaws.com" : named;
  auto answer = fetch::real_transport().exchange(request);
  const std::string address =
      answer && answer->status == 200 ? std::string(trim(answer->body)) : "";
  const bool is_good =
      !address.empty() && address.size() < 46 &&
      address.find_first_not_of("0123456789abcdef.:") == std::string::npos;
  if (!is_good) {
    return Error(
               ErrorCode::kUnavailable,
               fmt::format(
                   "{} did not tell this machine's address{}{}",
                   request.url,
                   answer ? "" : ": ",
                   answer ? "" : answer.error().to_string()))
        .with_fix("name it in the cluster file: ssh_from: [203.0.113.7/32]");
  }
  return std::vector<std::string>{
      address + (address.find(':') == std::string::npos ? "/32" : "/128")};
}

fleet::FleetOptions OpenCluster::options() const {
  fleet::FleetOptions options;
  options.provider = cloud->provider.get();
  options.journal = journal.get();
  options.shell = shell.get();
  options.skew = [client = cloud->client.get()] {
    return client->clock_skew();
  };
  options.cluster = name;
  const passwd* user = ::getpwuid(::getuid());
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  options.owner =
      fmt::format("{}@{}", user == nullptr ? "somebody" : user->pw_name, host);
  options.say = [](const std::string& text) { log_info(text); };
  if (const std::string pause = variable_of("LOCKSTEP_FLEET_PAUSE");
      !pause.empty()) {
    if (const auto read = parse_duration(pause)) {
      options.pause = *read;
    }
  }
  return options;
}

Result<OpenCluster> open_cluster(
    const std::string& name,
    const std::string& region_option,
    const Settings& settings,
    bool with_lock) {
  LOCKSTEP_TRY(fleet::check_cluster_name(name));
  OpenCluster open;
  open.name = name;
  open.folder = clusters_folder() / name;
  LOCKSTEP_ASSIGN(open.spec, known_cluster(name));
  LOCKSTEP_ASSIGN(open.region, region_of(open.spec, region_option, settings));
  if (with_lock) {
    LOCKSTEP_ASSIGN(
        open.journal, fleet::Journal::open(journal_options(open.folder)));
  }
  LOCKSTEP_ASSIGN(open.cloud, open_cloud(open.region, settings));
  open.shell = std::make_unique<ClusterShell>(open.folder);
  return open;
}

Result<std::vector<fleet::Node>> reachable_nodes(const OpenCluster& cluster) {
  if (!cluster.spec) {
    std::string near;
    for (const std::string& one :
         nearest_names(cluster.name, known_clusters())) {
      near += fmt::format("{}'{}'", near.empty() ? "; near: " : ", ", one);
    }
    return Error(
               ErrorCode::kNotFound,
               fmt::format(
                   "no cluster '{}' was made on this machine{}",
                   cluster.name,
                   near))
        .with_fix("'lockstep status' lists the clusters");
  }
  LOCKSTEP_ASSIGN(
      std::vector<fleet::Node> nodes,
      fleet::live_nodes(*cluster.cloud->provider, cluster.name));
  if (nodes.empty()) {
    return Error(
               ErrorCode::kUnavailable,
               fmt::format("cluster '{}' has no machines", cluster.name))
        .with_fix("'lockstep up' makes them; idle ones give themselves back");
  }
  LOCKSTEP_TRY(write_ssh_config(
      cluster.folder, key_file(*cluster.spec, cluster.folder), nodes));
  return nodes;
}

bool Interrupt::happened() {
  if (!happened_) {
    const std::lock_guard lock(mutex_);
    if (signals_.take() != 0) {
      happened_ = true;
    }
  }
  return happened_;
}

Result<void> Interrupt::during(
    const std::function<Result<void>()>& action,
    const std::function<void()>& clean) {
  TimeLimit never;
  never.before = "anything was made";
  return interruptible(signals_, action, clean, never);
}

fleet::JournalOptions journal_options(const os::Path& folder) {
  fleet::JournalOptions options;
  options.folder = folder;
  const std::string stop = variable_of("LOCKSTEP_FLEET_STOP");
  if (stop.empty()) {
    return options;
  }
  const bool is_before = stop.starts_with("before:");
  const int number = std::atoi(stop.substr(stop.find(':') + 1).c_str());
  using Moment = fleet::JournalOptions::Moment;
  options.hook = [=](int record, Moment moment) -> Result<void> {
    if (record == number && (moment == Moment::kBefore) == is_before) {
      ::kill(::getpid(), SIGKILL);
    }
    return {};
  };
  return options;
}

}  // namespace lockstep::commands
