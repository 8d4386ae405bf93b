#include <fmt/format.h>

#include <cmath>
#include <thread>

#include "lockstep/base/id.h"
#include "lockstep/base/units.h"
#include "lockstep/commands/doctor.h"
#include "lockstep/reach/facts.h"

namespace lockstep::commands {
namespace {

using nlohmann::json;
using std::chrono::seconds;

constexpr double kSkew = 1.0;  // seconds that nobody minds
constexpr uint64_t kLittleSpace = uint64_t{1} << 30;
constexpr uint64_t kLittleShared = uint64_t{64} << 20;
constexpr double kSample = 0.2;    // seconds of a measured transfer
constexpr size_t kMostPairs = 12;  // that are measured one after the other

os::Deadline soon() {
  return os::Deadline::after(seconds(60));
}

struct HostLook {
  std::string host;
  std::unique_ptr<reach::Session> session;
  std::vector<Finding> findings;
  json facts;
  uint64_t port = 0;
  std::string nonce;

  void
  add(std::string what, Grade grade, std::string detail, std::string fix = "") {
    findings.push_back(
        {std::move(what), grade, std::move(detail), std::move(fix), host});
  }
};

std::string signed_duration(double seconds) {
  return (seconds < 0 ? "-" : "+") +
         format_duration(from_seconds(std::abs(seconds)));
}

void look_at_clock(HostLook& look) {
  const double before = os::real_clock().unix_seconds();
  const auto answer = look.session->call("hello", {}, soon());
  const double after = os::real_clock().unix_seconds();
  if (!answer) {
    look.add("clock", Grade::kBroken, answer.error().to_string());
    return;
  }
  const double skew = answer->value("time", 0.0) - (before + after) / 2;
  const double doubt = (after - before) / 2;
  if (std::abs(skew) > kSkew + doubt) {
    look.add(
        "clock",
        Grade::kLacking,
        fmt::format(
            "{} against this machine: runs work, times in its logs and "
            "events are off",
            signed_duration(skew)),
        "timedatectl set-ntp true, or apt-get install chrony, there");
    return;
  }
  look.add(
      "clock",
      Grade::kGood,
      std::abs(skew) <= doubt
          ? fmt::format("within {}", format_duration(from_seconds(doubt)))
          : signed_duration(skew));
}

void look_at_machine(HostLook& look) {
  const json& facts = look.facts;
  const auto text = [&](const char* name) {
    return facts.value(name, std::string());
  };
  look.add(
      "system",
      Grade::kGood,
      fmt::format(
          "{}, {}, kernel {}, libc {}",
          text("architecture"),
          text("os"),
          text("kernel"),
          text("libc")));
  look.add(
      "cores",
      Grade::kGood,
      fmt::format("{} ({})", facts.value("cores", 0), text("cpu")));
  look.add(
      "memory",
      Grade::kGood,
      format_bytes({facts.value("memory", uint64_t{0})}));
  const json gpus = facts.value("gpus", json::array());
  if (gpus.empty()) {
    look.add("gpu", Grade::kGood, "none: ranks run on the cores");
  }
  for (const json& gpu : gpus) {
    look.add(
        "gpu",
        Grade::kGood,
        fmt::format(
            "{}, {}",
            gpu.value("name", ""),
            format_bytes({gpu.value("memory", uint64_t{0})})));
  }
  const uint64_t free = facts.value("free", uint64_t{0});
  look.add(
      "disk",
      free < kLittleSpace ? Grade::kLacking : Grade::kGood,
      fmt::format("{} free in {}", format_bytes({free}), text("lockstep_home")),
      free < kLittleSpace
          ? "free some room there, or set LOCKSTEP_FAR_HOME to a folder that "
            "has it"
          : "");
  const uint64_t shared = facts.value("shm", uint64_t{0});
  if (shared == 0) {
    look.add(
        "/dev/shm",
        Grade::kLacking,
        "not there: lockstep-train does without, PyTorch's loaders with "
        "workers do not",
        "mount -t tmpfs tmpfs /dev/shm");
  } else {
    look.add(
        "/dev/shm",
        shared < kLittleShared ? Grade::kLacking : Grade::kGood,
        format_bytes({shared}),
        shared < kLittleShared ? "PyTorch's loaders may need more: mount -o "
                                 "remount,size=50% /dev/shm"
                               : "");
  }
}

void look_at_tools(HostLook& look) {
  struct Tool {
    const char* name;
    const char* purpose;
    const char* package;
  };
  constexpr Tool kTools[] = {
      {"python3", "PyTorch programs", "python3"},
      {"mpirun", "--launcher mpi", "openmpi-bin"},
      {"docker", "--container", "docker.io"},
      {"podman", "--container", "podman"}};
  json names = json::array();
  for (const Tool& tool : kTools) {
    names.push_back(tool.name);
  }
  const auto answer = look.session->call("tools", {{"names", names}}, soon());
  if (!answer) {
    look.add("tools", Grade::kLacking, answer.error().to_string());
    return;
  }
  const bool has_docker = !answer->value("docker", "").empty();
  for (const Tool& tool : kTools) {
    const std::string found = answer->value(tool.name, "");
    if (!found.empty()) {
      look.add(tool.name, Grade::kGood, found);
    } else if (std::string_view(tool.name) != "podman" || !has_docker) {
      look.add(
          tool.name,
          Grade::kLacking,
          fmt::format("not there: {} needs it", tool.purpose),
          fmt::format("apt-get install {}", tool.package));
    }
  }
}

void look_at_host(HostLook& look) {
  look.add(
      "reach",
      Grade::kGood,
      fmt::format("ssh in {}", format_duration(look.session->took())));
  look.add(
      "lockstep",
      Grade::kGood,
      look.session->was_sent() ? "was not there: sent" : "there");
  look_at_clock(look);
  auto facts = look.session->call("facts", {}, soon());
  if (!facts) {
    look.add("facts", Grade::kBroken, facts.error().to_string());
    return;
  }
  look.facts = std::move(*facts);
  look_at_machine(look);
  look_at_tools(look);
}

void open_port(HostLook& look, const HostsQuestion& question) {
  look.nonce = to_hex(make_key()).substr(0, 32);
  const auto answer = look.session->call(
      "listen",
      {{"first", question.ports.first},
       {"last", question.ports.last},
       {"nonce", look.nonce}},
      soon());
  if (!answer) {
    look.add(
        "ports",
        Grade::kBroken,
        answer.error().to_string(),
        "give another range");
    return;
  }
  look.port = answer->value("port", uint64_t{0});
}

// Whether and how fast `from` reaches `to`.
void look_at_way(
    HostLook& from,
    HostLook& to,
    double sample,
    const HostsQuestion& question) {
  const auto answer = from.session->call(
      "dial",
      {{"addresses", to.facts.value("addresses", json::array())},
       {"port", to.port},
       {"nonce", to.nonce},
       {"seconds", sample}},
      soon());
  const std::string what = "to " + to.host;
  if (!answer) {
    from.add(
        what,
        Grade::kBroken,
        fmt::format(
            "cannot connect to port {}: {}", to.port, answer.error().message()),
        question.ports.first > 0
            ? fmt::format(
                  "open ports {} to {} on {}",
                  question.ports.first,
                  question.ports.last,
                  to.host)
            : fmt::format(
                  "open the ports of {} to {}, or name an open range with "
                  "--ports FIRST-LAST",
                  to.host,
                  from.host));
    return;
  }
  const double bandwidth = answer->value("bandwidth", 0.0);
  from.add(
      what,
      Grade::kGood,
      fmt::format(
          "{}: {} there and back{}",
          answer->value("address", ""),
          format_duration(from_seconds(answer->value("latency", 0.0))),
          bandwidth > 0
              ? fmt::format(
                    ", {}/s", format_bytes({static_cast<uint64_t>(bandwidth)}))
              : ""));
}

// Every pair is dialled; when there are many, only neighbours are measured.
void look_between(
    std::vector<HostLook*>& hosts,
    const HostsQuestion& question) {
  for (HostLook* host : hosts) {
    open_port(*host, question);
  }
  const bool all = hosts.size() * (hosts.size() - 1) <= kMostPairs;
  for (size_t i = 0; i < hosts.size(); ++i) {
    for (size_t j = 0; j < hosts.size(); ++j) {
      if (i != j && hosts[j]->port != 0) {
        const bool neighbours = j == (i + 1) % hosts.size();
        look_at_way(
            *hosts[i], *hosts[j], all || neighbours ? kSample : 0, question);
      }
    }
  }
}

}  // namespace

std::vector<Finding> look_at_hosts(const HostsQuestion& question) {
  std::vector<HostLook> looks(question.hosts.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < looks.size(); ++i) {
    looks[i].host = question.hosts[i].host;
  }
  std::vector<std::string> names;
  for (const HostLook& look : looks) {
    names.push_back(look.host);
  }
  auto sessions = reach::reach_all(names, question.reach);
  for (size_t i = 0; i < looks.size(); ++i) {
    if (!sessions[i]) {
      const Error& error = sessions[i].error();
      looks[i].add("reach", Grade::kBroken, error.message(), error.fix());
      continue;
    }
    looks[i].session = std::move(*sessions[i]);
    threads.emplace_back([&looks, i] { look_at_host(looks[i]); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  std::vector<HostLook*> usable;
  for (HostLook& look : looks) {
    if (look.facts.is_object()) {
      usable.push_back(&look);
    }
  }
  if (usable.size() > 1) {
    look_between(usable, question);
  }
  std::vector<Finding> findings;
  for (HostLook& look : looks) {
    findings.insert(findings.end(), look.findings.begin(), look.findings.end());
  }
  return findings;
}

}  // namespace lockstep::commands
