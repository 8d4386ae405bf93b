#include "lockstep/fleet/lease.h"

#include <fmt/format.h>

#include <cstdio>
#include <mutex>
#include <thread>

#include "lockstep/cloud/user_data.h"

namespace lockstep::fleet {

std::string tag_of(const cloud::Tags& tags, std::string_view key) {
  const auto found = tags.find(std::string(key));
  return found == tags.end() ? "" : found->second;
}

namespace {

// `end`: the time that budget or max_duration set; empty: none did.
std::string find_end() {
  const os::Path folder = cloud::lease_file().parent_path();
  return fmt::format(
      "end=''; for file in '{}/end' '{}/end'; do\n"
      "[ -f \"$file\" ] && read -r a b time < \"$file\" || continue\n"
      "[ -n \"$end\" ] && [ \"$end\" -le \"$time\" ] || end=$time\n"
      "done\n",
      folder.parent_path().string(),
      folder.string());
}

}  // namespace

// The letter in brackets: the shell that asks must not find itself.
std::string lease_look_script() {
  return find_end() +
         fmt::format(
             "read -r a b until < '{}' && pgrep -f '[l]ease.sh' >/dev/null || "
             "exit 1\n"
             "[ -z \"$end\" ] || [ \"$end\" -ge \"$until\" ] || until=$end\n"
             "echo \"lease $until $(date +%s)\"\n",
             cloud::lease_file().string());
}

std::string lease_renew_script(Duration time) {
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(time).count();
  return fmt::format(
      "file='{}'; now=$(date +%s); read -r a b until < \"$file\" || until=0\n"
      "if [ \"$until\" -lt $((now + {})) ]; then until=$((now + {}))\n"
      "echo \"lockstep-lease 1 $until\" > \"$file.$$\" && "
      "mv -f \"$file.$$\" \"$file\" || exit 1; fi\n"
      "echo \"lease $until $now\"\n",
      cloud::lease_file().string(),
      seconds,
      seconds);
}

std::string lease_end_script(double at) {
  const os::Path file = cloud::lease_file().parent_path() / "end";
  return fmt::format(
      "file='{}'; end={:.0f}; read -r a b old < \"$file\" 2>/dev/null || "
      "old=$end\n"
      "if [ \"$old\" -ge $end ]; then echo \"lockstep-lease 1 $end\" > "
      "\"$file.$$\" && mv -f \"$file.$$\" \"$file\"; fi\n",
      file.string(),
      at);
}

Result<LeaseState> parse_lease_look(const std::string& text) {
  double until = 0, now = 0;
  const size_t start = text.rfind("lease ");
  if (start == std::string::npos ||
      std::sscanf(text.c_str() + start, "lease %lf %lf", &until, &now) != 2) {
    return Error(
        ErrorCode::kCorrupt,
        fmt::format("the node told no lease: '{}'", text.substr(0, 80)));
  }
  return LeaseState{until, from_seconds(std::max(0.0, until - now))};
}

Result<LeaseState>
look_at_lease(NodeShell& shell, const Node& node, os::Deadline deadline) {
  LOCKSTEP_ASSIGN(
      const std::string text, shell.run(node, lease_look_script(), deadline));
  return parse_lease_look(text);
}

std::optional<Duration> time_to_end(
    NodeShell& shell,
    const std::vector<Node>& nodes,
    os::Deadline deadline) {
  // As parse_lease_look reads it.
  const std::string script =
      find_end() + "[ -z \"$end\" ] || echo \"lease $end $(date +%s)\"\n";
  std::mutex mutex;
  std::optional<Duration> least;
  std::vector<std::thread> threads;
  for (const Node& node : nodes) {
    threads.emplace_back([&] {
      const auto text = shell.run(node, script, deadline);
      const auto end =
          text ? parse_lease_look(*text) : Result<LeaseState>(text.error());
      if (end) {
        const std::lock_guard lock(mutex);
        least = std::min(least.value_or(end->left), end->left);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return least;
}

Result<void> renew_leases(
    NodeShell& shell,
    const std::vector<Node>& nodes,
    Duration time,
    os::Deadline deadline) {
  const std::string script = lease_renew_script(time);
  std::mutex mutex;
  std::string told;
  std::vector<std::thread> threads;
  for (const Node& node : nodes) {
    threads.emplace_back([&] {
      auto text = shell.run(node, script, deadline);
      auto state = text ? parse_lease_look(*text)
                        : Result<LeaseState>(std::move(text.error()));
      if (!state) {
        const std::lock_guard lock(mutex);
        told += fmt::format(
            "{}{}: {}",
            told.empty() ? "" : "; ",
            node.name,
            state.error().to_string());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (!told.empty()) {
    return Error(ErrorCode::kUnavailable, told)
        .with_context("renewing the lease");
  }
  return {};
}

}  // namespace lockstep::fleet
