#include "lockstep/reach/probe.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include "lockstep/os/descriptor.h"
#include "lockstep/os/process.h"
#include "lockstep/os/socket.h"
#include "lockstep/reach/message.h"

namespace lockstep::reach {
namespace {

using nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kNonceLength = 32;
constexpr int kPings = 15;
constexpr size_t kBlock = 128 << 10;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string version_line(const std::string& name) {
  const os::Descriptor output(::memfd_create("lockstep-tool", MFD_CLOEXEC));
  os::SpawnOptions options;
  options.argv = {name, "--version"};
  options.environment = os::environment();
  options.standard = {-1, output.get(), output.get()};
  options.die_with_parent = true;
  auto process = os::real_processes().spawn(options);
  if (!output || !process) {
    return "";
  }
  if (!(*process)->wait(os::Deadline::after(seconds(10)))) {
    (void)(*process)->signal(SIGKILL).has_value();
    (void)(*process)->wait(os::Deadline::after(seconds(5))).has_value();
    return "does not answer";
  }
  std::string text(4096, '\0');
  const ssize_t count = ::pread(output.get(), text.data(), text.size(), 0);
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  text = text.substr(0, text.find('\n'));
  std::erase_if(text, [](char c) { return c < ' ' || c > '~'; });
  return text.empty() ? "there" : text;
}

// 'b' is followed by a block, which is dropped; any other byte is echoed.
Result<void> serve_one(os::Connection& peer, const std::string& nonce) {
  const auto deadline = os::Deadline::after(seconds(30));
  std::string greeting(kNonceLength, '\0');
  LOCKSTEP_TRY(peer.read_all(
      std::as_writable_bytes(std::span(greeting.data(), greeting.size())),
      deadline));
  if (greeting != nonce) {
    return Error(ErrorCode::kPermission, "a stranger");
  }
  std::vector<std::byte> block(kBlock);
  while (true) {
    std::byte kind{};
    LOCKSTEP_TRY(peer.read_all({&kind, 1}, deadline));
    if (kind == std::byte{'b'}) {
      LOCKSTEP_TRY(peer.read_all(block, deadline));
    } else {
      LOCKSTEP_TRY(peer.write_all({&kind, 1}, deadline));
    }
  }
}

Result<double> measure_latency(os::Connection& peer, os::Deadline deadline) {
  std::vector<double> times;
  for (int i = 0; i < kPings; ++i) {
    const auto start = os::real_clock().now();
    std::byte byte{'p'};
    LOCKSTEP_TRY(peer.write_all({&byte, 1}, deadline));
    LOCKSTEP_TRY(peer.read_all({&byte, 1}, deadline));
    times.push_back(to_seconds(os::real_clock().now() - start));
  }
  std::ranges::nth_element(times, times.begin() + kPings / 2);
  return times[kPings / 2];
}

Result<double> measure_bandwidth(
    os::Connection& peer,
    Duration length,
    os::Deadline deadline) {
  std::string block(1 + kBlock, 'x');
  block[0] = 'b';
  const auto start = os::real_clock().now();
  double sent = 0;
  while (os::real_clock().now() - start < length) {
    LOCKSTEP_TRY(peer.write_all(bytes_of(block), deadline));
    sent += static_cast<double>(block.size());
  }
  // The echo comes when all before it was taken.
  std::byte byte{'p'};
  LOCKSTEP_TRY(peer.write_all({&byte, 1}, deadline));
  LOCKSTEP_TRY(peer.read_all({&byte, 1}, deadline));
  return sent / to_seconds(os::real_clock().now() - start);
}

}  // namespace

struct Probes::Server {
  std::unique_ptr<os::Listener> listener;
  std::string nonce;
  std::mutex mutex;
  std::unique_ptr<os::Connection> peer;  // that is being served
  bool ending = false;
  std::thread thread;

  void run() {
    while (true) {
      auto accepted = listener->accept(os::Deadline::never());
      if (!accepted && accepted.error().code() == ErrorCode::kAborted) {
        return;
      }
      if (!accepted) {
        continue;
      }
      {
        const std::lock_guard lock(mutex);
        if (ending) {
          return;
        }
        peer = std::move(*accepted);
      }
      (void)serve_one(*peer, nonce).has_value();
    }
  }

  // Also while a peer is being served.
  ~Server() {
    {
      const std::lock_guard lock(mutex);
      ending = true;
      if (peer) {
        peer->close();
      }
    }
    if (listener) {
      listener->close();
    }
    if (thread.joinable()) {
      thread.join();
    }
  }
};

Probes::Probes() = default;
Probes::~Probes() = default;

Result<json> Probes::tools(const json& request) {
  json answer = json::object();
  for (const json& name : request.value("names", json::array())) {
    answer[name.get<std::string>()] = version_line(name.get<std::string>());
  }
  return answer;
}

Result<json> Probes::listen(const json& request) {
  LOCKSTEP_ASSIGN(const uint64_t first, number_field(request, "first"));
  LOCKSTEP_ASSIGN(const uint64_t last, number_field(request, "last"));
  LOCKSTEP_ASSIGN(const std::string nonce, text_field(request, "nonce"));
  if (nonce.size() != kNonceLength || last > UINT16_MAX || first > last) {
    return Error(ErrorCode::kCorrupt, "a bad request to listen");
  }
  server_.reset();
  auto server = std::make_unique<Server>();
  std::string why;
  for (uint64_t port = first; port <= last && !server->listener; ++port) {
    // "::" takes IPv4 as well, where there is IPv6 at all.
    for (const char* any : {"::", "0.0.0.0"}) {
      auto listener =
          os::real_network().listen({any, static_cast<uint16_t>(port), ""});
      if (listener) {
        server->listener = std::move(*listener);
        break;
      }
      why = listener.error().to_string();
    }
  }
  if (!server->listener) {
    return Error(
        ErrorCode::kUnavailable,
        fmt::format("no free port from {} to {}: {}", first, last, why));
  }
  server->nonce = nonce;
  server->thread = std::thread([one = server.get()] { one->run(); });
  const uint16_t port = server->listener->address().port;
  server_ = std::move(server);
  return json{{"port", port}};
}

Result<json> Probes::dial(const json& request) {
  LOCKSTEP_ASSIGN(const uint64_t port, number_field(request, "port"));
  LOCKSTEP_ASSIGN(const std::string nonce, text_field(request, "nonce"));
  const double length = request.value("seconds", 0.0);
  std::string why;
  for (const json& one : request.value("addresses", json::array())) {
    const auto address = one.get<std::string>();
    auto peer = os::real_network().connect(
        {address, static_cast<uint16_t>(port), ""},
        os::Deadline::after(seconds(3)));
    if (!peer) {
      why += (why.empty() ? "" : "; ") + peer.error().to_string();
      continue;
    }
    const auto deadline = os::Deadline::after(seconds(20));
    LOCKSTEP_TRY((*peer)->write_all(bytes_of(nonce), deadline));
    LOCKSTEP_ASSIGN(const double latency, measure_latency(**peer, deadline));
    double bandwidth = 0;
    if (length > 0) {
      LOCKSTEP_ASSIGN(
          bandwidth, measure_bandwidth(**peer, from_seconds(length), deadline));
    }
    return json{
        {"address", address}, {"latency", latency}, {"bandwidth", bandwidth}};
  }
  return Error(ErrorCode::kUnavailable, why.empty() ? "no address" : why);
}

void Probes::add_to(Handlers& handlers) {
  handlers["tools"] = [](const json& r) { return tools(r); };
  handlers["listen"] = [this](const json& r) { return listen(r); };
  handlers["dial"] = [](const json& r) { return dial(r); };
}

}  // namespace lockstep::reach
